"""What the `tollway` command's groups do, one file a group."""
