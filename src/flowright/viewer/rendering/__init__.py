"""What pages and terminal screens are made of: markup, charts, cells, glyphs. No run files here."""
