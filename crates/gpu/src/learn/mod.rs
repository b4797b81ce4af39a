//! Learners: random forest, boosted trees, rules. All predict the logarithm of a gain.
//!
//! They are written here since they are small, must be readable and the same everywhere, and no
//! crate has a rule learner (ADR 0352). Tests compare them with scikit-learn's.

#[cfg(test)]
mod oracle;
mod rules;
mod selection;
mod tree;

pub use rules::{GainRule, RuleCondition, RuleList};
pub use selection::select_features;
use tree::BinnedRows;
pub use tree::{RegressionTree, TrainingSet, TreeLimits, TreeNode};

use crate::benchmark::SplitMix;
use serde::{Deserialize, Serialize};

/// Which learner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LearnerKind {
    /// Random forest (Breiman 2001).
    Forest,
    /// Gradient-boosted trees for squared error (Friedman 2001).
    Boosted,
    /// Random forests of which placement is best, in place of gains.
    Labels,
    /// A random forest on the features that [`select_features`] chooses.
    SelectedForest,
    /// Ordered rules by sequential covering, in the manner of RIPPER (Cohen 1995).
    Rules,
}

impl LearnerKind {
    /// All.
    pub const ALL: [Self; 5] =
        [Self::Labels, Self::Forest, Self::SelectedForest, Self::Boosted, Self::Rules];

    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forest => "random forest",
            Self::Labels => "random forest of labels",
            Self::SelectedForest => "random forest, selected features",
            Self::Boosted => "boosted trees",
            Self::Rules => "rules",
        }
    }
}

/// What a learner learned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LearnedModel {
    /// The mean of trees.
    Forest(Vec<RegressionTree>),
    /// A start and the sum of trees, each shrunk.
    Boosted {
        /// The mean of all targets.
        start: f64,
        /// Trees, their values shrunk already.
        trees: Vec<RegressionTree>,
    },
    /// Rules in order.
    Rules(RuleList),
}

/// Settings of the learners, ours, in the range of scikit-learn's defaults. What the scores are at
/// half and at double has not been measured.
struct Settings;

impl Settings {
    /// Trees of a forest.
    const FOREST_TREES: usize = 60;
    /// Levels of a forest's tree.
    const FOREST_DEPTH: u32 = 9;
    /// Rows of a leaf.
    const LEAF_ROWS: usize = 4;
    /// Boosting rounds.
    const BOOST_ROUNDS: usize = 120;
    /// Levels of a boosted tree.
    const BOOST_DEPTH: u32 = 4;
    /// Share of each boosted tree that counts.
    const SHRINKAGE: f64 = 0.08;
}

/// Trains a learner. Equal seeds give equal models.
#[must_use]
pub fn train(kind: LearnerKind, set: &TrainingSet, seed: u64) -> LearnedModel {
    let mut random = SplitMix(seed);
    let width = set.rows.first().map_or(0, Vec::len);
    match kind {
        LearnerKind::Rules => LearnedModel::Rules(RuleList::learn(set)),
        _ if set.rows.is_empty() => LearnedModel::Forest(Vec::new()),
        LearnerKind::Forest | LearnerKind::Labels => {
            let limits = TreeLimits {
                depth: Settings::FOREST_DEPTH,
                leaf_rows: Settings::LEAF_ROWS,
                // A third of the features, as is usual for regression.
                features: (width / 3).max(1),
            };
            let binned = BinnedRows::from_set(set);
            let trees = (0..Settings::FOREST_TREES).map(|_| {
                let rows = (0..set.rows.len()).map(|_| random.below(set.rows.len())).collect();
                RegressionTree::grow(set, &binned, rows, &limits, &mut random)
            });
            LearnedModel::Forest(trees.collect())
        }
        LearnerKind::SelectedForest => {
            let features = select_features(set);
            let pick = |row: &Vec<f64>| features.iter().map(|f| row[*f]).collect();
            let rows = set.rows.iter().map(pick).collect();
            let few = TrainingSet { rows, targets: set.targets.clone() };
            let mut model = train(LearnerKind::Forest, &few, seed);
            if let LearnedModel::Forest(trees) = &mut model {
                trees.iter_mut().for_each(|tree| tree.renumber(&features));
            }
            model
        }
        LearnerKind::Boosted => boost(set, width, &mut random),
    }
}

fn boost(set: &TrainingSet, width: usize, random: &mut SplitMix) -> LearnedModel {
    let start = set.targets.iter().sum::<f64>() / set.targets.len() as f64;
    let limits = TreeLimits {
        depth: Settings::BOOST_DEPTH,
        leaf_rows: Settings::LEAF_ROWS,
        features: (width / 2).max(1),
    };
    let binned = BinnedRows::from_set(set);
    let mut residual = set.clone();
    residual.targets.iter_mut().for_each(|t| *t -= start);
    let mut trees = Vec::new();
    for _ in 0..Settings::BOOST_ROUNDS {
        // Half of the rows each, without putting back (stochastic boosting).
        let rows: Vec<usize> = (0..set.rows.len()).filter(|_| random.next() & 1 == 0).collect();
        if rows.is_empty() {
            continue;
        }
        let mut tree = RegressionTree::grow(&residual, &binned, rows, &limits, random);
        tree.nodes.iter_mut().for_each(|node| node.value *= Settings::SHRINKAGE);
        for (row, target) in residual.rows.iter().zip(&mut residual.targets) {
            *target -= tree.predict(row);
        }
        trees.push(tree);
    }
    LearnedModel::Boosted { start, trees }
}

impl LearnedModel {
    /// The prediction for a row.
    #[must_use]
    pub fn predict(&self, row: &[f64]) -> f64 {
        match self {
            Self::Forest(trees) => {
                let sum: f64 = trees.iter().map(|tree| tree.predict(row)).sum();
                sum / trees.len().max(1) as f64
            }
            Self::Boosted { start, trees } => {
                start + trees.iter().map(|tree| tree.predict(row)).sum::<f64>()
            }
            Self::Rules(rules) => rules.predict(row),
        }
    }
}
