//! `terrace migratory run` as a user calls it.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::process::{Command, Output};

fn terrace(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    command.args(["migratory", "run"]).args(arguments).output().unwrap()
}

#[test]
fn a_program_runs_before_and_after_passes() {
    let arguments = ["triangles", "--graph=rmat:scale=6", "--pass=remote", "--threads=2"];
    let output = terrace(&[&arguments[..], &["--json"]].concat());
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["version"], &answer["nodelets"]), (&1.into(), &8.into()));
    let runs = answer["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    for run in runs {
        assert_eq!(run["returned"][0]["value"], 1134);
        let migrations = |rows: &Value| -> u64 {
            let rows = rows.as_array().unwrap().iter();
            rows.map(|row| row["migrations"].as_u64().unwrap()).sum()
        };
        // Those of the loop's spawns and syncs have no line of their own.
        let (all, lines) = (run["migrations"].as_u64().unwrap(), migrations(&run["lines"]));
        assert!(lines <= all && lines * 100 > all * 95, "{lines} of {all}");
    }
    assert!(runs[1]["migrations"].as_u64() < runs[0]["migrations"].as_u64());
    let table = String::from_utf8(terrace(&arguments).stdout).unwrap();
    assert!(table.contains("+ remote") && table.contains("total = 1134"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
}

#[test]
fn a_report_shows_both_programs_and_a_recording_is_simulated() {
    let folder = std::env::temp_dir().join(format!("terrace-migrated-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [page, trace] = ["r.html", "r.trace"].map(|name| folder.join(name));
    let [report, record] = [("--report=", &page), ("--record=", &trace)]
        .map(|(option, path)| option.to_owned() + path.to_str().unwrap());
    let graph = "--graph=rmat:scale=7";
    let output = terrace(&["bfs", graph, "--pass=remote", &report, &record, "--record-threads=2"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = std::fs::read_to_string(&page).unwrap();
    for expected in ["class=\"matrix\"", "Threads and queues", "remote u.next min="] {
        assert!(page.contains(expected), "{expected}");
    }
    let mut sim = Command::new(env!("CARGO_BIN_EXE_terrace"));
    sim.args(["sim", "--machine=lab-cxl", "--policy=first-touch", "--json"]).arg(&trace);
    let answer: Value = serde_json::from_slice(&sim.output().unwrap().stdout).unwrap();
    assert!(answer["runs"][0]["seconds"].as_f64().unwrap() > 0.0, "{answer}");
    let output = terrace(&["bfs", graph, "--record=/no/such/folder/r.trace"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("recording /no/such/folder"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn programs_and_graphs_are_read_from_files() {
    let folder = std::env::temp_dir().join(format!("terrace-migratory-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [program, graph] = ["p.tv", "g.el"].map(|name| folder.join(name));
    let text =
        "program degrees;\nglobal n = 0;\nparallel for v in vertices { n += v.out_degree; }\n\
                return n;\n";
    std::fs::write(&program, text).unwrap();
    std::fs::write(&graph, "0 1\n1 2\n2 0\n2 3\n2 2\n0 1\n").unwrap();
    let (program, graph) = (program.to_str().unwrap(), graph.to_str().unwrap());
    for (graph, expected) in [(graph.to_owned(), 8), (format!("{graph},directed=yes"), 4)] {
        let output = terrace(&[program, "--graph", &graph, "--json"]);
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["runs"][0]["returned"][0]["value"], expected, "{graph}");
        assert_eq!(answer["notes"][0], "left out: 1 loops and 1 repeated edges");
    }
    let mut format = Command::new(env!("CARGO_BIN_EXE_terrace"));
    let output = format.args(["migratory", "format", program, "--write"]).output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    let formatted = std::fs::read_to_string(program).unwrap();
    assert!(formatted.contains("vertices {\n    n += v.out_degree;\n}\n"), "{formatted}");
    let mut format = Command::new(env!("CARGO_BIN_EXE_terrace"));
    let output = format.args(["migratory", "format", "bfs", "--write"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && errors.contains("leave out --write"), "{errors}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let graph = "--graph=rmat:scale=3";
    for (arguments, status, expected) in [
        (&["no-such-program", graph][..], 2, "give a program's file or conductance"),
        (&["bfs", "--graph=no-such-file"], 2, "give a graph file, or rmat"),
        (&["bfs", graph, "--pass=faster"], 2, "pass \"faster\" is unknown; give fusion"),
        (&["bfs", graph, "--layout=heap"], 2, "layout \"heap\" is unknown"),
        (&["bfs", graph, "--machine=emu-9"], 2, "machine \"emu-9\" is unknown"),
        (&["bfs", graph, "--machine=emu-chick,cores=0"], 2, "cores = \"0\" is not possible"),
        (&["bfs", graph, "--set=sauce=1"], 2, "it has source"),
        (&["bfs", graph, "--set=source"], 2, "give NAME=VALUE"),
        (&["bfs", graph, "--pass=fusion"], 2, "pass fusion: there is nothing to change"),
        (&["bfs", graph, "--instructions=10"], 1, "without an end"),
        (&["bfs", "--graph=rmat:scale=12", "--machine=emu-chick,memory_bytes=4096"], 3, "needs"),
    ] {
        let output = terrace(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {errors}");
        assert!(errors.contains(expected), "{arguments:?}: {errors}");
        assert_eq!(errors.trim_end().lines().count(), 1, "{errors}");
        assert!(output.stdout.is_empty());
    }
}
