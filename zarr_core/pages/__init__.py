"""What the HTML pages of reports are made of: parts of a page, and how figures get onto it."""
