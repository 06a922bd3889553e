"""Images: what sandboxes start from, described in a TOML file, built once, shared by all without copying.

    image = await build.build_file(Path("env.toml"), Store(), print)
    await backend.open(SandboxSpec(base=f"image:{image.hash}"))

    records    what people write (`ImageSpec`), what a build pins (`Lock`), what a sandbox needs (`Image`)
    store      layers by content key, images, downloads; locks between processes; garbage collection
    build      the steps: base, apt packages, Python requirements, files, repository, commands
    bases      where the first layers come from: the host, a directory, a tarball, an OCI image, debootstrap
    packages   apt and pip: from names to exact files with hashes, from files to a layer

The network is used only while something is not locked or not yet in the store; sandboxes start without it.
"""
