//! Writes two sample reports, of made-up recordings, to look at: `sample FOLDER`.
#[path = "../tests/common/mod.rs"]
mod common;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::path::PathBuf::from(std::env::args().nth(1).ok_or("usage: sample FOLDER")?);
    let journal = common::journal("./solver --input mesh.bin", "the hot set is in the fast tier");
    let comparison = common::comparison("skew,accesses=32M");
    for (name, recording) in [("run.html", journal), ("compare.html", comparison)] {
        std::fs::write(folder.join(name), terrace_report::read(recording.as_bytes())?.to_html())?;
    }
    Ok(())
}
