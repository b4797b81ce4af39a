//! Advice for unified memory: its honest scores, and what is refused.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use terrace_gpu::data::DataError;
use terrace_gpu::managed::{
    is_managed_table, leave_one_input_out, merge_alike, read_managed_arrays, ManagedAdvice,
    ManagedArray, ManagedModel, MANAGED_COLUMNS,
};

/// The public measurements, where they lie beside the repository.
fn measured() -> Option<Vec<ManagedArray>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/gpu");
    let mut arrays = Vec::new();
    for name in ["xplacer-bfs.csv", "xplacer-cfd.csv"] {
        let Ok(text) = std::fs::read_to_string(folder.join(name)) else {
            println!("skipped: no {name} beside the repository");
            return None;
        };
        arrays.extend(read_managed_arrays(name, &text).unwrap());
    }
    Some(merge_alike(arrays))
}

/// What leaving one input out gives, against the benchmark's most frequent advice: on cfd better,
/// on bfs the same (`docs/results/gpu.md`, unified memory).
#[test]
fn inputs_that_were_left_out_are_advised_as_documented() {
    let Some(arrays) = measured() else { return };
    let scores = leave_one_input_out(&arrays, 1);
    let (bfs, cfd) = (scores["bfs"], scores["cfd"]);
    println!("{scores:?}");
    assert_eq!((bfs.launches, bfs.majority), (200, 129));
    assert_eq!((cfd.launches, cfd.majority), (270, 90));
    assert!(cfd.right > cfd.majority, "{cfd:?}");
    assert!(bfs.right >= bfs.majority, "{bfs:?}");
}

/// The launches of a case are alike: a model that saw some of them knows the others.
#[test]
fn arrays_that_were_learned_from_are_known() {
    let Some(arrays) = measured() else { return };
    assert_eq!(arrays.iter().map(|a| a.launches).sum::<usize>(), 470);
    let model = ManagedModel::shipped().unwrap();
    let trained = serde_json::to_string(&ManagedModel::train(&arrays, 1)).unwrap();
    let shipped = include_str!("../data/managed-model.json");
    assert!(trained == shipped.trim_end(), "train the model again (crates/gpu/data/README.md)");
    let alike = |a: &ManagedArray| {
        arrays.iter().filter(|b| b.features == a.features).all(|b| b.best == a.best)
    };
    let known: Vec<_> = arrays.iter().filter(|a| alike(a)).collect();
    assert!(known.len() > 30, "{}", known.len());
    let right = known.iter().filter(|a| a.best == Some(model.choose(&a.features).advice)).count();
    assert!(right * 10 >= known.len() * 8, "{right} of {}", known.len());
}

#[test]
fn tables_without_labels_are_advised_and_broken_ones_named_by_line() {
    let header = format!("Kernel,Data,{}", MANAGED_COLUMNS.join(","));
    let text = format!("{header}\nk,a,8000000,512,1954,1000448,16,6.11,100\n");
    assert!(is_managed_table(&text) && !is_managed_table("kernel,block,grid\n"));
    let arrays = read_managed_arrays("t.csv", &text).unwrap();
    assert_eq!((arrays[0].best, arrays[0].launches), (None, 1));
    let choice = ManagedModel::shipped().unwrap().choose(&arrays[0].features);
    assert!(choice.confidence > 0.0 && choice.confidence <= 1.0, "{choice:?}");
    // Nothing learned, nothing advised.
    let none = ManagedModel::train(&arrays, 1).choose(&arrays[0].features);
    assert_eq!(none.advice, ManagedAdvice::NoAdvice);

    let label = text.replace("Data,", "Data,label,").replace("k,a,", "k,a,9,");
    let found = read_managed_arrays("t.csv", &label);
    assert!(matches!(found, Err(DataError::BadField { line: 2, .. })), "{found:?}");
    let missing = read_managed_arrays("t.csv", "Kernel,Data\nk,a\n");
    assert!(matches!(missing, Err(DataError::NoColumn { .. })), "{missing:?}");
    let huge = text.replace("8000000", "1e999");
    assert!(matches!(read_managed_arrays("t.csv", &huge), Err(DataError::BadField { .. })));
}
