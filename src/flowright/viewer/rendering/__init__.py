"""Parts of pages and terminal screens: markup, charts, reports, glyphs. No run files here."""
