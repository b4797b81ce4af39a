//! `terrace gpu advise` as a user calls it. No GPU is needed.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn advise(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    command.args(["gpu", "advise"]).args(arguments).output().unwrap()
}

fn kernel(name: &str) -> String {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/kernels");
    kernels.join(name).to_str().unwrap().to_owned()
}

/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("terrace-gpu-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_recorded_run_gives_the_launch() {
    let folder = folder("run");
    let run = folder.join("run.csv");
    let header = "kernel,block,grid,duration_ns\n";
    let lines = "void fir(const float *  int),(64  1  1),(10  1  1),900\n\
                 fir,(256  1  1),(3907  1  1),500\nfir,(256  1  1),(3907  1  1),600\n\
                 other,(32  1  1),(1  1  1),90000\n";
    std::fs::write(&run, format!("{header}{lines}")).unwrap();
    let (run, source) = (run.to_str().unwrap(), kernel("fir.cu"));
    let sizes = ["--size=tap=32", "--size=signal=1000031", "--arg=n=1000000"];
    let output = advise(&[&[source.as_str(), "--run", run, "--json"], &sizes[..]].concat());
    assert!(words(&output).contains("grid [3907, 1, 1] and block [256, 1, 1], of 2 launches"));
    let from_run: Value = serde_json::from_slice(&output.stdout).unwrap();
    let shape = ["--json", "--grid=3907", "--block=256"];
    let output = advise(&[&[source.as_str()], &shape[..], &sizes[..]].concat());
    assert_eq!(from_run, serde_json::from_slice::<Value>(&output.stdout).unwrap());

    let output = advise(&[run]);
    assert!(!output.status.success() && words(&output).contains("--run"), "{output:?}");
    let output = advise(&[&kernel("md.cu"), "--run", run]);
    assert!(words(&output).contains("has no launch of kernel md"), "{output:?}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn arrays_in_unified_memory_are_advised() {
    let folder = folder("managed");
    let table = folder.join("arrays.csv");
    let text = "Kernel,Data,DataSize,Block Size,Grid Size,Threads,Registers Per Thread,\
                Waves Per SM,Theoretical Occupancy\n\
                step,small,1000000,512,1954,1000448,16,6.11,100\n\
                step,large,8000000,512,1954,1000448,24,6.11,100\n";
    std::fs::write(&table, text).unwrap();
    let output = advise(&[table.to_str().unwrap(), "--json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let arrays = answer["unified_memory"].as_array().unwrap();
    assert_eq!((&answer["version"], arrays.len()), (&1.into(), 2));
    assert!(arrays.iter().all(|a| a["advice"].is_string() && a["kernel"] == "step"), "{answer}");
    let output = advise(&[table.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("small") && text.matches("of the votes").count() == 2, "{text}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_model_of_older_features_is_refused() {
    let folder = folder("model");
    let model = folder.join("model.json");
    let older = include_str!("../../gpu/data/model.json").replacen(
        "\"feature_version\":1",
        "\"feature_version\":0",
        1,
    );
    std::fs::write(&model, older).unwrap();
    let output = advise(&[&kernel("fir.cu"), "--model", model.to_str().unwrap()]);
    assert!(!output.status.success() && words(&output).contains("train it again"), "{output:?}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_placed_source_is_written() {
    let folder = folder("apply");
    let placed = folder.join("placed.cu");
    let source = kernel("histogram.cu");
    let sizes = ["--size=data=16000000", "--size=count=256", "--arg=n=16000000"];
    let launch =
        ["--arg=bins=256", "--arg=BINS=256", "--grid=3907", "--block=256", "--apply", "-o"];
    let output = advise(
        &[&[source.as_str()], &sizes[..], &launch[..], &[placed.to_str().unwrap()]].concat(),
    );
    assert!(output.status.success(), "{}", words(&output));
    let text = std::fs::read_to_string(&placed).unwrap();
    assert!(text.contains("#define TILE_count"), "{text}");
    std::fs::remove_dir_all(&folder).unwrap();
}
