//! Regression trees that split where the squared error falls most.

use crate::benchmark::SplitMix;
use serde::{Deserialize, Serialize};

/// Rows of features with targets.
#[derive(Debug, Clone, Default)]
pub struct TrainingSet {
    /// Features, one row each.
    pub rows: Vec<Vec<f64>>,
    /// What is to be predicted.
    pub targets: Vec<f64>,
}

/// A node; leaves have no feature.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(from = "(i64, f32, u32, f32)", into = "(i64, f32, u32, f32)")]
pub struct TreeNode {
    /// The feature's position, or `u32::MAX` in a leaf.
    pub feature: u32,
    /// Rows at or below it go left.
    pub threshold: f64,
    /// The left child's position; the right one is next to it.
    pub left: u32,
    /// The mean of the rows of this node.
    pub value: f64,
}

/// In a file: feature (-1 in a leaf), threshold, left child, value.
impl From<(i64, f32, u32, f32)> for TreeNode {
    fn from((feature, threshold, left, value): (i64, f32, u32, f32)) -> Self {
        let feature = u32::try_from(feature).unwrap_or(LEAF);
        Self { feature, threshold: f64::from(threshold), left, value: f64::from(value) }
    }
}

impl From<TreeNode> for (i64, f32, u32, f32) {
    fn from(node: TreeNode) -> Self {
        let feature = if node.feature == LEAF { -1 } else { i64::from(node.feature) };
        (feature, node.threshold as f32, node.left, node.value as f32)
    }
}

/// A tree, its root first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RegressionTree {
    /// Nodes.
    pub nodes: Vec<TreeNode>,
}

/// How a tree grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeLimits {
    /// Most levels of splits.
    pub depth: u32,
    /// Fewest rows of a leaf.
    pub leaf_rows: usize,
    /// Features that a split chooses among.
    pub features: usize,
}

const LEAF: u32 = u32::MAX;

/// Values of a feature that a split can fall between, at most.
const BINS: usize = 64;

/// Features as positions among quantiles, so that a split is found without sorting.
pub(crate) struct BinnedRows {
    /// For each feature, the greatest value of each bin but the last.
    cuts: Vec<Vec<f64>>,
    /// For each feature, each row's bin.
    bins: Vec<Vec<u8>>,
}

impl BinnedRows {
    pub fn from_set(set: &TrainingSet) -> Self {
        let width = set.rows.first().map_or(0, Vec::len);
        let (mut cuts, mut bins) = (Vec::new(), Vec::new());
        for feature in 0..width {
            let mut values: Vec<f64> = set.rows.iter().map(|row| row[feature]).collect();
            values.sort_by(f64::total_cmp);
            values.dedup();
            let step = values.len().div_ceil(BINS).max(1);
            let own: Vec<f64> = values
                .windows(2)
                .skip(step - 1)
                .step_by(step)
                .map(|pair| f64::midpoint(pair[0], pair[1]))
                .collect();
            let bin = |row: &Vec<f64>| own.partition_point(|cut| *cut < row[feature]) as u8;
            bins.push(set.rows.iter().map(bin).collect());
            cuts.push(own);
        }
        Self { cuts, bins }
    }
}

impl RegressionTree {
    /// Grows a tree on these rows of the set.
    pub(crate) fn grow(
        set: &TrainingSet,
        binned: &BinnedRows,
        rows: Vec<usize>,
        limits: &TreeLimits,
        random: &mut SplitMix,
    ) -> Self {
        let mut nodes = Vec::new();
        let mut open = vec![(0_usize, rows, 0_u32)];
        nodes.push(leaf(set, &open[0].1));
        while let Some((at, rows, depth)) = open.pop() {
            if depth >= limits.depth || rows.len() < 2 * limits.leaf_rows {
                continue;
            }
            let Some((feature, threshold)) = best_split(set, binned, &rows, limits, random) else {
                continue;
            };
            let (left, right): (Vec<usize>, Vec<usize>) =
                rows.into_iter().partition(|row| set.rows[*row][feature] <= threshold);
            let child = nodes.len();
            nodes.push(leaf(set, &left));
            nodes.push(leaf(set, &right));
            nodes[at].feature = feature as u32;
            nodes[at].threshold = threshold;
            nodes[at].left = child as u32;
            open.push((child, left, depth + 1));
            open.push((child + 1, right, depth + 1));
        }
        Self { nodes }
    }

    /// Makes positions among `features` those of whole rows.
    pub(crate) fn renumber(&mut self, features: &[usize]) {
        for node in self.nodes.iter_mut().filter(|node| node.feature != LEAF) {
            node.feature = features[node.feature as usize] as u32;
        }
    }

    /// The prediction for a row. A tree from a file that leads nowhere ends where it stands.
    #[must_use]
    pub fn predict(&self, row: &[f64]) -> f64 {
        let mut at = 0_usize;
        let mut value = 0.0;
        // No path is longer than the tree has nodes: a file may hold a cycle.
        for _ in 0..=self.nodes.len() {
            let Some(node) = self.nodes.get(at) else { break };
            value = node.value;
            if node.feature == LEAF {
                break;
            }
            let feature = row.get(node.feature as usize).copied().unwrap_or(0.0);
            at = node.left as usize + usize::from(feature > node.threshold);
        }
        value
    }
}

fn leaf(set: &TrainingSet, rows: &[usize]) -> TreeNode {
    let sum: f64 = rows.iter().map(|row| set.targets[*row]).sum();
    let value = sum / rows.len().max(1) as f64;
    TreeNode { feature: LEAF, threshold: 0.0, left: 0, value }
}

fn best_split(
    set: &TrainingSet,
    binned: &BinnedRows,
    rows: &[usize],
    limits: &TreeLimits,
    random: &mut SplitMix,
) -> Option<(usize, f64)> {
    let width = binned.bins.len();
    let mut features: Vec<usize> = (0..width).collect();
    let mut best: Option<(f64, usize, f64)> = None;
    let total: f64 = rows.iter().map(|row| set.targets[*row]).sum();
    for tried in 0..limits.features.min(width) {
        let pick = tried + random.below(width - tried);
        features.swap(tried, pick);
        let feature = features[tried];
        let mut sums = [(0_usize, 0.0_f64); BINS + 1];
        for row in rows {
            let bin = &mut sums[usize::from(binned.bins[feature][*row])];
            bin.0 += 1;
            bin.1 += set.targets[*row];
        }
        let (mut count, mut left) = (0, 0.0);
        for (bin, threshold) in binned.cuts[feature].iter().enumerate() {
            count += sums[bin].0;
            left += sums[bin].1;
            let rest = rows.len() - count;
            if sums[bin].0 == 0 || count < limits.leaf_rows || rest < limits.leaf_rows {
                continue;
            }
            let right = total - left;
            let score = left * left / count as f64 + right * right / rest as f64;
            if best.is_none_or(|(b, _, _)| score > b) {
                best = Some((score, feature, *threshold));
            }
        }
    }
    let (score, feature, threshold) = best?;
    // A split that explains nothing only makes the tree larger.
    (score > total * total / rows.len() as f64 + 1e-9).then_some((feature, threshold))
}
