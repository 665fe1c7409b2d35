"""The command line: Typer commands, one file each, with the parsing of human units and the rendering of answers."""
