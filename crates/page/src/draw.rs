//! Drawings as SVG text, with classes instead of colours: the page's style decides how they look.
