//! Stacks shipped with Terrace, as stack files with the source of each figure.

use super::design::StackDesign;
use super::error::StackError;
use super::file;

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        const PRESETS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../presets/hbm/", $name, ".toml")))),*];
    };
}

presets![
    "hbm1",
    "hbm2",
    "hbm2e",
    "hbm3",
    "hbm3e",
    "hbm4",
    "hbm4-16",
    "paper-8",
    "microbump-16",
    "hybrid-16",
    "ddr4-3ds",
];

/// The preset of this name.
///
/// # Errors
/// [`StackError::NoSuchPreset`] with the names there are.
pub fn preset(name: &str) -> Result<StackDesign, StackError> {
    match PRESETS.iter().find(|p| p.0 == name) {
        Some((name, text)) => file::read(text, name),
        None => Err(StackError::NoSuchPreset {
            name: name.chars().filter(|c| !c.is_control()).take(40).collect(),
            known: names().collect::<Vec<_>>().join(", "),
        }),
    }
}

/// The stack file of a preset, comments and sources included.
#[must_use]
pub fn text(name: &str) -> Option<&'static str> {
    PRESETS.iter().find(|p| p.0 == name).map(|p| p.1)
}

/// All presets, by generation.
pub fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|p| p.0)
}

#[cfg(test)]
mod tests {
    use super::super::{banks, height};
    use super::*;

    #[test]
    fn each_preset_reads_and_has_its_name() {
        for name in names() {
            let design = preset(name).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(design.name, name);
        }
        assert!(preset("hbm9").unwrap_err().to_string().contains("hbm4"));
    }

    /// Bandwidth and capacity follow from pins, rate and dies; the vias must not take any of it.
    #[test]
    fn published_figures_are_met_within_ten_percent() {
        let mut met = 0;
        for name in names() {
            let design = preset(name).unwrap();
            let pairs = [
                (banks::peak_bytes_per_s(&design) / 1e9, design.published.published_gb_per_s),
                (
                    design.capacity_bytes() as f64 / f64::from(1 << 30),
                    design.published.published_gib,
                ),
                (height::minimum_um(&design), design.published.published_um),
            ];
            for (ours, published) in pairs {
                let Some(published) = published else { continue };
                assert!((ours / published - 1.0).abs() < 0.10, "{name}: {ours} for {published}");
                met += 1;
            }
        }
        assert!(met >= 16, "{met}");
    }

    #[test]
    fn today_s_bonding_is_too_high_for_sixteen_dies() {
        let fits = |name: &str| height::fits(&preset(name).unwrap());
        assert!(fits("hbm4") && fits("hbm4-16") && fits("hybrid-16"));
        assert!(!fits("microbump-16"), "the paper, section 3.3");
    }
}
