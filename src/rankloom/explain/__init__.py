"""What a layout and a plan look like: tables for the terminal, self-contained HTML pages."""
