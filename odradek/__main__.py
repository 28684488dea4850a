"""`python -m odradek`: the command line, where the script `odradek` is not on the path."""

from odradek.node.cli.main import main

if __name__ == "__main__":
    main()
