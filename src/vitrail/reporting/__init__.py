"""What every page is made of: one HTML file, its style, SVG charts. numpy and Pillow only."""
