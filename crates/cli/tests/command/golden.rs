//! Expected texts in `tests/golden/`. `UPDATE_GOLDEN=1 cargo test -p packetrig` writes them anew; read the difference.

use std::path::Path;

/// Compares `text` with the committed text of that name.
pub(crate) fn compare(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.txt"));
    // Trailing blanks are the layouter's business, and editors remove them.
    let text: String = text.lines().flat_map(|line| [line.trim_end(), "\n"]).collect();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return std::fs::write(&path, text).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == wanted, "{name} differs from {}:\n{text}\ninstead of:\n{wanted}", path.display());
}
