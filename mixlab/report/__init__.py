"""Reports: one self-contained HTML file, with no script and no network, in which every text is shown as text."""
