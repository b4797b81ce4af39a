//! A model that chooses placements: how likely each placement is the best one, the gain that it is
//! expected to have, and its file.

use crate::dataset::PlacementSample;
use crate::features::{FEATURE_NAMES, FEATURE_VERSION, LEARNED};
use crate::learn::{train, LearnedModel, LearnerKind, RuleList, TrainingSet};
use crate::placement::ArrayPlacement;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Version of the file.
const FILE_VERSION: u32 = 2;
/// The longest file and most nodes that are read.
const MOST_BYTES: usize = 32 << 20;

/// Gains beyond a factor of four either way count as such: how much larger decides nothing.
const GAIN_LIMIT: f64 = 2.0;

/// A trained model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlacementModel {
    /// Version of this file's format.
    pub version: u32,
    /// Version of the features.
    pub feature_version: u32,
    /// Names of the features that it takes, in order.
    pub features: Vec<String>,
    /// Devices it was trained on.
    pub devices: Vec<String>,
    /// The gain above which a placement is chosen, log2.
    pub threshold: f64,
    /// How likely a placement is the best one: one learned model for each, global memory too. Where
    /// there are none, gains alone choose.
    pub labels: BTreeMap<ArrayPlacement, LearnedModel>,
    /// The gain of a placement: one learned model for each.
    pub gains: BTreeMap<ArrayPlacement, LearnedModel>,
    /// Rules by placement: less accurate, and readable.
    #[serde(default)]
    pub rules: BTreeMap<ArrayPlacement, RuleList>,
}

/// Why a model's file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LearnedModelError {
    /// Too long.
    #[error("the model has {bytes} bytes; up to {MOST_BYTES} are read")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// No JSON of a model.
    #[error("the model cannot be read: {reason}; train it again")]
    Malformed {
        /// The parser's words.
        reason: String,
    },
    /// Another version.
    #[error(
        "the model has format {found} with features {features}; this Terrace reads format \
        {FILE_VERSION} with features {FEATURE_VERSION}: train it again"
    )]
    Version {
        /// Its format.
        found: u32,
        /// Its features.
        features: u32,
    },
}

/// What a model says of an array.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlacementChoice {
    /// The placement.
    pub placement: ArrayPlacement,
    /// The predicted gain over global memory, a factor of the kernel's speed.
    pub speedup: f64,
    /// Its share of the trees' votes, from 0 to 1; 0 where gains alone chose.
    pub confidence: f64,
}

/// Rows of features with the gain of one placement.
fn training_set<'a>(
    samples: impl Iterator<Item = &'a PlacementSample>,
    placement: ArrayPlacement,
    row: &dyn Fn(&PlacementSample) -> Vec<f64>,
) -> TrainingSet {
    let mut set = TrainingSet::default();
    for sample in samples {
        if let Some(gain) = sample.gains.get(&placement) {
            set.rows.push(row(sample));
            set.targets.push(gain.clamp(-GAIN_LIMIT, GAIN_LIMIT));
        }
    }
    set
}

/// One forest for each placement that is best anywhere: whether it is. Managed and pinned memory
/// count as global memory, which they are no faster than beyond noise.
pub(crate) fn train_labels(
    samples: &[&PlacementSample],
    row: &dyn Fn(&PlacementSample) -> Vec<f64>,
    seed: u64,
) -> BTreeMap<ArrayPlacement, LearnedModel> {
    let label = |sample: &PlacementSample| {
        Some(sample.label()).filter(|p| LEARNED.contains(p)).unwrap_or(ArrayPlacement::Global)
    };
    let rows: Vec<Vec<f64>> = samples.iter().map(|s| row(s)).collect();
    let found: BTreeSet<ArrayPlacement> = samples.iter().map(|s| label(s)).collect();
    let learn = |placement: ArrayPlacement| {
        let targets = samples.iter().map(|s| f64::from(u8::from(label(s) == placement))).collect();
        let set = TrainingSet { rows: rows.clone(), targets };
        (placement, train(LearnerKind::Forest, &set, seed))
    };
    found.into_iter().map(learn).collect()
}

impl PlacementModel {
    /// Trains on these samples; `row` says which features count. [`LearnerKind::Labels`] learns
    /// which placement is best, the others learn gains.
    #[must_use]
    pub fn train_on(
        kind: LearnerKind,
        samples: &[&PlacementSample],
        row: &dyn Fn(&PlacementSample) -> Vec<f64>,
        threshold: f64,
        seed: u64,
    ) -> Self {
        let learn = |placement: ArrayPlacement| {
            let set = training_set(samples.iter().copied(), placement, row);
            (placement, train(kind, &set, seed ^ placement as u64))
        };
        let (labels, gains) = match kind {
            LearnerKind::Labels => (train_labels(samples, row, seed), BTreeMap::new()),
            _ => (BTreeMap::new(), LEARNED.into_iter().map(learn).collect()),
        };
        let mut devices: Vec<String> = samples.iter().map(|s| s.key.device.clone()).collect();
        devices.sort();
        devices.dedup();
        Self {
            version: FILE_VERSION,
            feature_version: FEATURE_VERSION,
            features: FEATURE_NAMES.iter().map(|n| (*n).to_owned()).collect(),
            devices,
            threshold,
            labels,
            gains,
            rules: BTreeMap::new(),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// A file that is malformed, or of another version.
    pub fn read(text: &str) -> Result<Self, LearnedModelError> {
        if text.len() > MOST_BYTES {
            return Err(LearnedModelError::TooLong { bytes: text.len() });
        }
        let malformed = |reason: String| LearnedModelError::Malformed { reason };
        // The version first: an older file may lack what this one has.
        #[derive(Deserialize)]
        struct Versions {
            version: u32,
            feature_version: u32,
        }
        let versions: Versions =
            serde_json::from_str(text).map_err(|e| malformed(e.to_string()))?;
        if (versions.version, versions.feature_version) != (FILE_VERSION, FEATURE_VERSION) {
            return Err(LearnedModelError::Version {
                found: versions.version,
                features: versions.feature_version,
            });
        }
        let model: Self = serde_json::from_str(text).map_err(|e| malformed(e.to_string()))?;
        if model.features.iter().ne(FEATURE_NAMES.iter()) {
            return Err(malformed("its features are not those of this version".to_owned()));
        }
        if !model.threshold.is_finite() {
            return Err(malformed("its threshold is no number".to_owned()));
        }
        Ok(model)
    }

    /// The file's text.
    #[must_use]
    pub fn write(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The predicted gain of a placement, log2; global memory gains nothing.
    #[must_use]
    pub fn predict_gain(&self, row: &[f64], placement: ArrayPlacement) -> f64 {
        self.gains.get(&placement).map_or(0.0, |model| model.predict(row))
    }

    /// The placement to choose among those that are legal.
    #[must_use]
    pub fn choose(&self, row: &[f64], legal: &[ArrayPlacement]) -> PlacementChoice {
        match self.labels.is_empty() {
            true => self.choose_by_gain(row, legal),
            false => self.choose_by_label(row, legal),
        }
    }

    /// The placement that is most likely the best.
    fn choose_by_label(&self, row: &[f64], legal: &[ArrayPlacement]) -> PlacementChoice {
        let allowed = |p: &ArrayPlacement| *p == ArrayPlacement::Global || legal.contains(p);
        let votes: Vec<(ArrayPlacement, f64)> = self
            .labels
            .iter()
            .filter(|(placement, _)| allowed(placement))
            .map(|(placement, model)| (*placement, model.predict(row)))
            .map(|(placement, vote)| (placement, if vote > 0.0 { vote.min(1.0) } else { 0.0 }))
            .collect();
        let sum: f64 = votes.iter().map(|(_, vote)| vote).sum();
        // Of equals the first: global memory, which needs least.
        let best = votes.into_iter().rev().max_by(|a, b| a.1.total_cmp(&b.1));
        let (placement, vote) = best.unwrap_or((ArrayPlacement::Global, 0.0));
        let gain = self.predict_gain(row, placement).clamp(0.0, GAIN_LIMIT);
        PlacementChoice {
            placement,
            speedup: if gain.is_nan() { 1.0 } else { gain.exp2() },
            confidence: if sum > 0.0 { vote / sum } else { 0.0 },
        }
    }

    /// The placement of the greatest gain, if that is above the threshold.
    fn choose_by_gain(&self, row: &[f64], legal: &[ArrayPlacement]) -> PlacementChoice {
        let gains = legal.iter().map(|p| (*p, self.predict_gain(row, *p)));
        let (placement, gain) = gains
            .filter(|(_, gain)| gain.is_finite() && *gain > self.threshold)
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .unwrap_or((ArrayPlacement::Global, 0.0));
        // No more was learned than the limit, and a file may hold any number.
        PlacementChoice { placement, speedup: gain.min(GAIN_LIMIT).exp2(), confidence: 0.0 }
    }

    /// Learns readable rules from the same samples.
    pub fn learn_rules(
        &mut self,
        samples: &[&PlacementSample],
        row: &dyn Fn(&PlacementSample) -> Vec<f64>,
    ) {
        self.rules = LEARNED
            .into_iter()
            .map(|p| (p, RuleList::learn(&training_set(samples.iter().copied(), p, row))))
            .collect();
    }

    /// The rule that speaks for a placement, if one does: `uniform > 0.98 and log2_bytes <= 9`.
    #[must_use]
    pub fn rule_text(&self, row: &[f64], placement: ArrayPlacement) -> Option<String> {
        let rule = self.rules.get(&placement)?.matching(row)?;
        let conditions = rule.conditions.iter().map(|c| {
            let name = self.features.get(c.feature as usize).map_or("?", String::as_str);
            let sign = if c.above { ">" } else { "<=" };
            format!("{name} {sign} {:.2}", c.threshold)
        });
        Some(conditions.collect::<Vec<_>>().join(" and "))
    }
}
