//! The observations and figures of HyPlacer's paper, from the simulator.
//!
//! ```text
//! hyplacer [--scale N] [--clock N] [--budget PERCENT] [--only 2,3,5,7] [--kernels BT,FT,MG,CG]
//!          [--policies P,...] [--workers N] [--json FILE] [--journals FOLDER]
//! ```
//! Figures 2 and 3 load the memory of `dram-dcpmm` as it is. Figures 5, 6 and 7 run the NAS kernels
//! under each policy on that machine scaled down (`machine.rs` says how), with the paper's
//! parameters. Tables go to standard output as Markdown, all numbers as JSON to the file.
#![allow(clippy::unwrap_used)] // a check that fails may panic

mod kernels;
mod loads;
mod machine;
mod managed;

use std::fmt::Write;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Err(why) = run(&arguments) {
        eprintln!("hyplacer: {why}");
        std::process::exit(1);
    }
}

fn run(arguments: &[String]) -> Result<(), String> {
    let mut scale = machine::Scale::default();
    let (mut only, mut names) = (vec![2, 3, 5, 7], kernels::NAMES.map(str::to_owned).to_vec());
    let mut policies = kernels::POLICIES.map(str::to_owned).to_vec();
    let mut journals: Option<std::path::PathBuf> = None;
    let (mut json, mut workers) =
        (None, std::thread::available_parallelism().map_or(1, usize::from));
    for pair in arguments.chunks(2) {
        let [key, value] = pair else { return Err(format!("{pair:?} has no value")) };
        let number = || value.parse::<u64>().map_err(|e| format!("{key} {value}: {e}"));
        match key.as_str() {
            "--scale" => scale.size = number()?,
            "--clock" => scale.clock = number()?.max(1),
            "--budget" => scale.budget = number()?,
            "--policies" => policies = value.split(',').map(str::to_owned).collect(),
            "--workers" => workers = number()? as usize,
            "--only" => only = value.split(',').map(|n| n.parse().unwrap_or(0)).collect(),
            "--kernels" => names = value.split(',').map(str::to_owned).collect(),
            "--journals" => journals = Some(value.into()),
            "--json" => json = Some(value.clone()),
            _ => return Err(format!("{key} is not known; see the head of this program's source")),
        }
    }
    let mut all = serde_json::Map::new();
    let mut text = String::new();
    if only.contains(&2) {
        let points = loads::figure2()?;
        loads::tell2(&mut text, &points);
        all.insert("figure2".into(), serde_json::to_value(&points).map_err(|e| e.to_string())?);
    }
    if only.contains(&3) {
        let points = loads::figure3(workers)?;
        loads::tell3(&mut text, &points);
        all.insert("figure3".into(), serde_json::to_value(&points).map_err(|e| e.to_string())?);
    }
    print!("{}", std::mem::take(&mut text));
    for (figure, sizes) in [(5, &["M", "L"][..]), (7, &["S"])] {
        if only.contains(&figure) {
            let runs =
                kernels::runs(scale, (&names, sizes, &policies), workers, journals.as_deref())?;
            kernels::tell(&mut text, figure, &runs, &policies);
            all.insert(
                format!("figure{figure}"),
                serde_json::to_value(&runs).map_err(|e| e.to_string())?,
            );
            print!("{}", std::mem::take(&mut text));
        }
    }
    if let Some(path) = json {
        let mut out = serde_json::to_string_pretty(&all).map_err(|e| e.to_string())?;
        let _ = writeln!(out);
        std::fs::write(&path, out)
            .map_err(|e| format!("{path}: {e}; give a folder that exists"))?;
    }
    Ok(())
}
