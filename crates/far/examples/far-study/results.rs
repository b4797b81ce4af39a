//! What was measured, read back from lines of JSON.

use crate::peers::median;
use serde_json::Value;
use std::collections::BTreeMap;

/// A median with the least and the most of what it is of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    pub median: f64,
    pub least: f64,
    pub most: f64,
    pub count: usize,
}

impl Figure {
    /// Of some values; nothing of none.
    pub fn from_values(mut values: Vec<f64>) -> Option<Self> {
        let median = median(&mut values);
        Some(Self { median, least: *values.first()?, most: *values.last()?, count: values.len() })
    }
}

/// The measurements of one kernel at one size, in turns: what each peer said in it.
type Turns = Vec<BTreeMap<String, Value>>;

/// All that was measured.
#[derive(Default)]
pub struct Results {
    cells: BTreeMap<(String, u64), Turns>,
    /// What was said at the end of each run.
    pub ends: Vec<Value>,
}

impl Results {
    /// Adds the lines of one file.
    pub fn add(&mut self, text: &str) -> Result<(), String> {
        for line in text.lines() {
            let value: Value = serde_json::from_str(line).map_err(|e| format!("{line}: {e}"))?;
            let word = |name: &str| value[name].as_str().map(str::to_owned);
            let Some(((kernel, factor), peer)) =
                word("kernel").zip(value["factor"].as_u64()).zip(word("peer"))
            else {
                self.ends.push(value);
                continue;
            };
            // Parts are kernels of their own as well.
            for (part, seconds) in value["parts"].as_object().into_iter().flatten() {
                let mut alone = value.clone();
                alone["seconds"] = seconds.clone();
                self.note((part.clone(), factor), peer.clone(), alone);
            }
            self.note((kernel, factor), peer, value);
        }
        Ok(())
    }

    fn note(&mut self, cell: (String, u64), peer: String, value: Value) {
        let turns = self.cells.entry(cell).or_default();
        match turns.last_mut() {
            Some(turn) if !turn.contains_key(&peer) => {
                turn.insert(peer, value);
            }
            _ => turns.push(BTreeMap::from([(peer, value)])),
        }
    }

    fn turns(&self, kernel: &str, factor: u64) -> &[BTreeMap<String, Value>] {
        self.cells.get(&(kernel.to_owned(), factor)).map_or(&[], Vec::as_slice)
    }

    /// A number that one peer said of a kernel.
    pub fn median_of(&self, kernel: &str, factor: u64, peer: &str, what: &str) -> Option<Figure> {
        Figure::from_values(
            self.turns(kernel, factor).iter().filter_map(|t| t.get(peer)?[what].as_f64()).collect(),
        )
    }

    /// A word that was said of a kernel.
    pub fn word(&self, kernel: &str, factor: u64, what: &str) -> Option<String> {
        self.turns(kernel, factor)
            .iter()
            .flat_map(|t| t.values())
            .find_map(|v| Some(v[what].as_str()?.to_owned()))
    }

    /// Plain memory's time as a share of a peer's, in percent, turn by turn.
    pub fn efficiency(&self, kernel: &str, factor: u64, peer: &str) -> Option<Figure> {
        self.ratio(kernel, factor, "plain", peer).map(|f| Figure {
            median: 100.0 * f.median,
            least: 100.0 * f.least,
            most: 100.0 * f.most,
            ..f
        })
    }

    /// One peer's time over another's.
    pub fn ratio(&self, kernel: &str, factor: u64, over: &str, under: &str) -> Option<Figure> {
        let one = |t: &BTreeMap<String, Value>| {
            Some(t.get(over)?["seconds"].as_f64()? / t.get(under)?["seconds"].as_f64()?)
        };
        Figure::from_values(self.turns(kernel, factor).iter().filter_map(one).collect())
    }

    /// Why measurements are missing: kernel, size, peer, reason, how often.
    pub fn missing(&self) -> BTreeMap<(String, u64, String, String), usize> {
        let mut all = BTreeMap::new();
        for ((kernel, factor), turns) in &self.cells {
            for (peer, value) in turns.iter().flatten() {
                if let Some(why) = value["why"].as_str() {
                    *all.entry((kernel.clone(), *factor, peer.clone(), why.to_owned()))
                        .or_insert(0) += 1;
                }
            }
        }
        all
    }

    /// The most that any run of a peer said.
    pub fn peak_of(&self, peer: &str, what: &str) -> Option<f64> {
        let all = self.cells.values().flatten().filter_map(|t| t.get(peer)?[what].as_f64());
        all.reduce(f64::max)
    }
}

/// The least intensity from which on all efficiencies are at least so many percent.
#[derive(Debug, PartialEq)]
pub enum Passed {
    /// Between two that were measured, by interpolation in its logarithm.
    At(f64),
    /// Already at the least that was measured.
    Below(f64),
    /// Not even at the most.
    Never,
}

/// Where efficiency passes `percent`; points are intensity and efficiency, in order.
pub fn passes(points: &[(f64, f64)], percent: f64) -> Option<Passed> {
    let last = points.iter().rposition(|p| p.1 < percent);
    Some(match last {
        None => Passed::Below(points.first()?.0),
        Some(n) => match points.get(n + 1) {
            None => Passed::Never,
            Some(above) => {
                let below = points[n];
                let part = (percent - below.1) / (above.1 - below.1);
                Passed::At((below.0.log2() + part * (above.0.log2() - below.0.log2())).exp2())
            }
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crossing_lies_between_its_neighbours() {
        let points = [(4.0, 10.0), (16.0, 40.0), (64.0, 60.0), (256.0, 95.0)];
        assert_eq!(passes(&points, 50.0), Some(Passed::At(32.0)));
        assert_eq!(passes(&points, 99.0), Some(Passed::Never));
        assert_eq!(passes(&points, 5.0), Some(Passed::Below(4.0)));
        assert_eq!(passes(&[], 5.0), None);
        // One lucky point does not count when the next one falls back.
        assert_eq!(
            passes(&[(4.0, 60.0), (16.0, 40.0), (64.0, 60.0)], 50.0),
            Some(Passed::At(32.0))
        );
    }

    #[test]
    fn efficiency_is_of_the_same_turn() {
        let mut results = Results::default();
        let line = |peer: &str, s: f64| {
            format!(
                r#"{{"kernel":"fft","factor":2000,"peer":"{peer}","seconds":{s},"parts":{{"x":{s}}},"shape":"cube"}}"#
            )
        };
        let all = [("plain", 1.0), ("far", 2.0), ("plain", 1.0), ("far", 4.0), ("plain", 2.0)];
        let text: Vec<String> = all.iter().map(|(p, s)| line(p, *s)).collect();
        results.add(&text.join("\n")).unwrap();
        results
            .add(r#"{"kernel":"fft","factor":2000,"peer":"far","why":"longer than 25 s"}"#)
            .unwrap();
        results.add(r#"{"dram_mib":48}"#).unwrap();
        let found = results.efficiency("fft", 2000, "far").unwrap();
        assert_eq!(found, Figure { median: 37.5, least: 25.0, most: 50.0, count: 2 });
        assert_eq!(results.efficiency("x", 2000, "far"), Some(found));
        assert_eq!(results.efficiency("fft", 1000, "far"), None);
        assert_eq!(results.word("fft", 2000, "shape").as_deref(), Some("cube"));
        assert_eq!((results.missing().len(), results.ends.len()), (1, 1));
        assert_eq!(results.peak_of("far", "seconds"), Some(4.0));
        assert!(Results::default().add("no JSON").is_err());
    }
}
