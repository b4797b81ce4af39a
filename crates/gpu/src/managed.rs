//! Advice for arrays in unified (CUDA managed) memory, learned from public measurements of one GPU:
//! read-mostly, preferred location, accessed-by, none of them, or a copy by hand.

use crate::data::{CsvTable, DataError};
use crate::learn::{train, LearnedModel, LearnerKind, TrainingSet};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What to do with an array that host and GPU share. The order is that of the labels 0 to 6 in the
/// measurements (Xu et al., MCHPC 2019; `bfs_adapt.cu` of its repository).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ManagedAdvice {
    /// No managed memory: `cudaMalloc` and a copy.
    ExplicitCopy,
    /// Managed memory without advice.
    NoAdvice,
    /// `cudaMemAdviseSetReadMostly`.
    ReadMostly,
    /// `cudaMemAdviseSetPreferredLocation` with the GPU.
    PreferGpu,
    /// `cudaMemAdviseSetAccessedBy` with the GPU.
    AccessedByGpu,
    /// `cudaMemAdviseSetPreferredLocation` with the host.
    PreferHost,
    /// `cudaMemAdviseSetAccessedBy` with the host.
    AccessedByHost,
}

impl ManagedAdvice {
    /// All, in the order of their labels.
    pub const ALL: [Self; 7] = [
        Self::ExplicitCopy,
        Self::NoAdvice,
        Self::ReadMostly,
        Self::PreferGpu,
        Self::AccessedByGpu,
        Self::PreferHost,
        Self::AccessedByHost,
    ];

    /// What to call, for a reader.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::ExplicitCopy => "cudaMalloc and a copy, no managed memory",
            Self::NoAdvice => "managed memory without advice",
            Self::ReadMostly => "cudaMemAdviseSetReadMostly",
            Self::PreferGpu => "cudaMemAdviseSetPreferredLocation, the GPU",
            Self::AccessedByGpu => "cudaMemAdviseSetAccessedBy, the GPU",
            Self::PreferHost => "cudaMemAdviseSetPreferredLocation, the host",
            Self::AccessedByHost => "cudaMemAdviseSetAccessedBy, the host",
        }
    }
}

/// Columns that the advice comes from: the array's bytes and the launch, as Nsight Compute names
/// them. A table holds one line for each array of a kernel, with `Kernel` and `Data` (the array).
pub const MANAGED_COLUMNS: [&str; 7] = [
    "DataSize",
    "Block Size",
    "Grid Size",
    "Threads",
    "Registers Per Thread",
    "Waves Per SM",
    "Theoretical Occupancy",
];

/// An array of a kernel in a table of measurements.
#[derive(Debug, Clone, PartialEq)]
pub struct ManagedArray {
    /// The program; empty where the table names none.
    pub benchmark: String,
    /// Its input; empty where the table names none.
    pub input: String,
    /// The kernel.
    pub kernel: String,
    /// The array.
    pub array: String,
    /// Values of [`MANAGED_COLUMNS`].
    pub features: Vec<f64>,
    /// Launches that the line stands for.
    pub launches: usize,
    /// The fastest advice, in a table to learn from.
    pub best: Option<ManagedAdvice>,
}

/// Whether a text is a table of arrays in unified memory, by its header.
#[must_use]
pub fn is_managed_table(text: &str) -> bool {
    let header = text.lines().next().unwrap_or_default();
    ["Kernel", "Data", "DataSize"].iter().all(|name| header.split(',').any(|h| h.trim() == *name))
}

/// Reads a table. The columns `Benchmark`, `InputData`, `Launches` and `label` may be missing.
///
/// # Errors
/// Columns or numbers that are missing; a label that is none of 0 to 6.
pub fn read_managed_arrays(file: &str, text: &str) -> Result<Vec<ManagedArray>, DataError> {
    let table = CsvTable::read(file, text)?;
    let optional = |name: &str| match table.header().contains(&name) {
        true => table.texts(name).map(Some),
        false => Ok(None),
    };
    let (kernels, arrays) = (table.texts("Kernel")?, table.texts("Data")?);
    let (benchmarks, inputs) = (optional("Benchmark")?, optional("InputData")?);
    let (launches, labels) = (optional("Launches")?, optional("label")?);
    let features = MANAGED_COLUMNS
        .iter()
        .map(|name| table.numbers(name))
        .collect::<Result<Vec<Vec<f64>>, DataError>>()?;
    let named = |texts: &Option<Vec<&str>>, at: usize| {
        texts.as_ref().map_or_else(String::new, |texts| texts[at].to_owned())
    };
    let read = |at: usize| {
        let count = |texts: &Option<Vec<&str>>, name: &str, most: usize| {
            let Some(text) = texts.as_ref().map(|texts| texts[at]) else { return Ok(None) };
            let number = text.parse().ok().filter(|n: &usize| *n <= most);
            number.map(Some).ok_or_else(|| table.bad_field(at, name, text))
        };
        Ok(ManagedArray {
            benchmark: named(&benchmarks, at),
            input: named(&inputs, at),
            kernel: kernels[at].to_owned(),
            array: arrays[at].to_owned(),
            features: features.iter().map(|column| column[at]).collect(),
            launches: count(&launches, "Launches", 1000)?.unwrap_or(1),
            best: count(&labels, "label", 6)?.map(|label| ManagedAdvice::ALL[label]),
        })
    };
    (0..table.len()).map(read).collect()
}

/// Puts lines together that differ in nothing but their launches, in the order of their first.
#[must_use]
pub fn merge_alike(arrays: Vec<ManagedArray>) -> Vec<ManagedArray> {
    let mut merged: Vec<ManagedArray> = Vec::new();
    for array in arrays {
        let alike = |other: &&mut ManagedArray| {
            ManagedArray { launches: array.launches, ..(**other).clone() } == array
        };
        match merged.iter_mut().find(alike) {
            Some(known) => known.launches += array.launches,
            None => merged.push(array),
        }
    }
    merged
}

/// A choice of advice.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ManagedChoice {
    /// The advice.
    pub advice: ManagedAdvice,
    /// Its share of the trees' votes, from 0 to 1.
    pub confidence: f64,
}

/// One forest for each advice: how likely it is the fastest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ManagedModel {
    forests: Vec<(ManagedAdvice, LearnedModel)>,
}

impl ManagedModel {
    /// The model that Terrace brings: `crates/gpu/data/README.md` says what it was trained on.
    ///
    /// # Errors
    /// A file that is no model, which a test excludes.
    pub fn shipped() -> Result<Self, serde_json::Error> {
        serde_json::from_str(include_str!("../data/managed-model.json"))
    }

    /// Trains on the arrays whose best advice is known. Equal seeds give equal models.
    #[must_use]
    pub fn train<'a>(arrays: impl IntoIterator<Item = &'a ManagedArray>, seed: u64) -> Self {
        let mut rows = Vec::new();
        let mut labels = Vec::new();
        for array in arrays {
            let Some(best) = array.best else { continue };
            rows.extend(std::iter::repeat_n(array.features.clone(), array.launches));
            labels.extend(std::iter::repeat_n(best, array.launches));
        }
        let found: BTreeSet<ManagedAdvice> = labels.iter().copied().collect();
        let forests = found.into_iter().map(|advice| {
            let targets = labels.iter().map(|l| f64::from(u8::from(*l == advice))).collect();
            let set = TrainingSet { rows: rows.clone(), targets };
            (advice, train(LearnerKind::Forest, &set, seed))
        });
        Self { forests: forests.collect() }
    }

    /// The advice for an array with these [`MANAGED_COLUMNS`]; none before anything was learned.
    #[must_use]
    pub fn choose(&self, features: &[f64]) -> ManagedChoice {
        let votes: Vec<(ManagedAdvice, f64)> =
            self.forests.iter().map(|(a, forest)| (*a, forest.predict(features))).collect();
        let sum: f64 = votes.iter().map(|(_, vote)| vote).sum();
        // Of equals the first: what needs least.
        let best = votes.iter().rev().max_by(|a, b| a.1.total_cmp(&b.1));
        best.map_or(
            ManagedChoice { advice: ManagedAdvice::NoAdvice, confidence: 0.0 },
            |(advice, vote)| ManagedChoice {
                advice: *advice,
                confidence: if sum > 0.0 { vote / sum } else { 0.0 },
            },
        )
    }
}

/// How many launches' best advice a model names whose training had all inputs of the benchmark but
/// the launch's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ManagedScore {
    /// Launches, each of one array.
    pub launches: usize,
    /// Those whose best advice the model names.
    pub right: usize,
    /// Those whose best advice is the benchmark's most frequent one.
    pub majority: usize,
}

/// Leaves one input of each benchmark out at a time.
#[must_use]
pub fn leave_one_input_out(arrays: &[ManagedArray], seed: u64) -> BTreeMap<String, ManagedScore> {
    let mut scores: BTreeMap<String, ManagedScore> = BTreeMap::new();
    let mut inputs: BTreeMap<(&str, &str), Vec<&ManagedArray>> = BTreeMap::new();
    let mut labels: BTreeMap<(&str, ManagedAdvice), usize> = BTreeMap::new();
    for array in arrays {
        let Some(best) = array.best else { continue };
        inputs.entry((&array.benchmark, &array.input)).or_default().push(array);
        *labels.entry((&array.benchmark, best)).or_default() += array.launches;
    }
    for ((benchmark, input), left_out) in &inputs {
        let rest = arrays.iter().filter(|a| a.benchmark == *benchmark && a.input != *input);
        let model = ManagedModel::train(rest, seed);
        let score = scores.entry((*benchmark).to_owned()).or_default();
        for array in left_out {
            score.launches += array.launches;
            if array.best == Some(model.choose(&array.features).advice) {
                score.right += array.launches;
            }
        }
    }
    for (benchmark, score) in &mut scores {
        let own = labels.iter().filter(|((name, _), _)| name == benchmark);
        score.majority = own.map(|(_, launches)| *launches).max().unwrap_or(0);
    }
    scores
}
