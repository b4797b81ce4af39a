//! Regression trees that split where the squared error falls most.

use crate::benchmark::SplitMix;
use serde::{Deserialize, Serialize};

/// Rows of features with targets and weights.
#[derive(Debug, Clone, Default)]
pub struct TrainingSet {
    /// Features, one row each.
    pub rows: Vec<Vec<f64>>,
    /// What is to be predicted.
    pub targets: Vec<f64>,
}

/// A node; leaves have no feature.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
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

impl RegressionTree {
    /// Grows a tree on these rows of the set.
    pub(crate) fn grow(
        set: &TrainingSet,
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
            let Some((feature, threshold)) = best_split(set, &rows, limits, random) else {
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
    rows: &[usize],
    limits: &TreeLimits,
    random: &mut SplitMix,
) -> Option<(usize, f64)> {
    let width = set.rows[rows[0]].len();
    let mut features: Vec<usize> = (0..width).collect();
    let mut best: Option<(f64, usize, f64)> = None;
    let total: f64 = rows.iter().map(|row| set.targets[*row]).sum();
    let count = rows.len() as f64;
    for tried in 0..limits.features.min(width) {
        let pick = tried + random.below(width - tried);
        features.swap(tried, pick);
        let feature = features[tried];
        let mut sorted: Vec<(f64, f64)> =
            rows.iter().map(|row| (set.rows[*row][feature], set.targets[*row])).collect();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut left = 0.0;
        for at in 1..sorted.len() {
            left += sorted[at - 1].1;
            let few = at < limits.leaf_rows || sorted.len() - at < limits.leaf_rows;
            if few || sorted[at].0 <= sorted[at - 1].0 {
                continue;
            }
            let n = at as f64;
            let right = total - left;
            let score = left * left / n + right * right / (count - n);
            if best.is_none_or(|(b, _, _)| score > b) {
                let threshold = f64::midpoint(sorted[at].0, sorted[at - 1].0);
                best = Some((score, feature, threshold));
            }
        }
    }
    let (score, feature, threshold) = best?;
    // A split that explains nothing only makes the tree larger.
    (score > total * total / count + 1e-9).then_some((feature, threshold))
}
