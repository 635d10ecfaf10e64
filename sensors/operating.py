"""Where docs/operating.md says what to do: descriptions in the UI name the part of the page."""

# Relative to the repository. An installation that publishes its documentation puts the address of the page here.
PAGE = "docs/operating.md"


def page_of(section: str) -> str:
    """The address of a section of the page.

    Args:
        section: its anchor, such as "a-failed-check".
    """
    return f"{PAGE}#{section}"


def if_red(section: str, action: str) -> str:
    """The end of a description: what to do if the thing is red in the UI, and where that is described.

    Args:
        section: anchor of the section of the page.
        action: what to do, such as "look at the source".
    """
    return f"\n\nIf it is red: {action}. See `{page_of(section)}`."
