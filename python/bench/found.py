"""What a row found: a table of figures, and figures held against what they are to reach. ``cargo x bench-python`` shows and keeps it.

A figure is a number, or a list with one for each turn.
"""


class Found:
    def __init__(self, about, columns):
        self.about, self.columns, self.lines, self.held = about, columns, [], []

    def line(self, name, *figures):
        """A line of the table: a name, and a figure for each other column."""
        self.lines.append({"name": name, "figures": [turns(figure) for figure in figures]})

    def hold(self, what, figure, least=None, most=None):
        """What has no aim is reported."""
        self.held.append({"what": what, "turns": turns(figure), "least": least, "most": most})


def turns(figure):
    return list(figure) if isinstance(figure, (list, tuple)) else [figure]
