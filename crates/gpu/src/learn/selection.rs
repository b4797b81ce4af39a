//! Correlation-based feature selection (Hall, thesis, Waikato 1999, chapter 4): a set of features
//! is good when each goes with the target and few go with each other.

use super::tree::TrainingSet;

/// Positions of the selected features, in order; empty where no feature goes with the target.
/// Features are added one at a time, the one that raises the set's merit most, until none does.
#[must_use]
pub fn select_features(set: &TrainingSet) -> Vec<usize> {
    let width = set.rows.first().map_or(0, Vec::len);
    let columns: Vec<Vec<f64>> = (0..width)
        .map(|feature| standardized(set.rows.iter().map(|row| row[feature]).collect()))
        .collect();
    let target = standardized(set.targets.clone());
    let with_target: Vec<f64> = columns.iter().map(|column| correlation(column, &target)).collect();
    let mut selected: Vec<usize> = Vec::new();
    // Sums of correlations: with the target, and of each pair within the set. `with_set` is the
    // sum of a feature's correlations with the features that are selected.
    let (mut target_sum, mut pair_sum, mut merit) = (0.0, 0.0, 0.0);
    let mut with_set = vec![0.0; width];
    loop {
        let candidate = (0..width)
            .filter(|feature| !selected.contains(feature))
            .map(|feature| {
                let count = selected.len() as f64 + 1.0;
                // Hall's equation 4.3, with means written as sums.
                let spread = count + 2.0 * (pair_sum + with_set[feature]);
                (feature, (target_sum + with_target[feature]) / spread.sqrt())
            })
            .max_by(|a, b| a.1.total_cmp(&b.1));
        let Some((feature, better)) = candidate.filter(|(_, m)| *m > merit + 1e-12) else { break };
        merit = better;
        target_sum += with_target[feature];
        pair_sum += with_set[feature];
        for (other, sum) in with_set.iter_mut().enumerate() {
            *sum += correlation(&columns[feature], &columns[other]);
        }
        selected.push(feature);
    }
    selected.sort_unstable();
    selected
}

/// Values less their mean, with length one; all zero where they do not differ.
fn standardized(mut values: Vec<f64>) -> Vec<f64> {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    values.iter_mut().for_each(|v| *v -= mean);
    let length = values.iter().map(|v| v * v).sum::<f64>().sqrt();
    let scale = if length > 1e-12 { 1.0 / length } else { 0.0 };
    values.iter_mut().for_each(|v| *v *= scale);
    values
}

/// Pearson's correlation of standardized values, without its sign.
fn correlation(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(l, r)| l * r).sum::<f64>().abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_and_noise_are_left_out() {
        let mut random = crate::benchmark::SplitMix(7);
        let mut set = TrainingSet::default();
        for _ in 0..400 {
            let (a, b) = (f64::from(random.unit()), f64::from(random.unit()));
            let noise = f64::from(random.unit());
            // The second is nearly the first; the fourth says nothing; the fifth never changes.
            set.rows.push(vec![a, a + 0.1 * noise, b, noise, 3.0]);
            set.targets.push(a + b);
        }
        assert_eq!(select_features(&set), [0, 2]);
        assert_eq!(select_features(&TrainingSet::default()), [0_usize; 0]);
    }
}
