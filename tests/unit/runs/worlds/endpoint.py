"""`python endpoint.py FOLDER NAME PORT`: an OpenAI-compatible endpoint that says "done" once FOLDER/go is there.

It prints its port, and writes a line to FOLDER/NAME for every request that it gets.
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER, NAME, PORT = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
ANSWER = {"choices": [{"message": {"role": "assistant", "content": "done"}, "finish_reason": "stop"}]}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        if self.path != "/v1/chat/completions":
            self.send_error(404)
            return
        with (FOLDER / NAME).open("a") as asked:
            asked.write("asked\n")
        while not (FOLDER / "go").exists():
            time.sleep(0.01)
        content = json.dumps(ANSWER).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
print(server.server_port, flush=True)
server.serve_forever()
