//! Writes a report of each kind, of made-up measurements, to look at: `sample FOLDER`.
#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/common/kinds.rs"]
mod kinds;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::path::PathBuf::from(std::env::args().nth(1).ok_or("usage: sample FOLDER")?);
    for (name, html) in kinds::pages() {
        std::fs::write(folder.join(format!("{name}.html")), html)?;
    }
    Ok(())
}
