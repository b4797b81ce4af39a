//! Hosts that share pools, on a recording or a small workload: `share_pools [HOSTS POOLS POLICY
//! [RECORDING]]`.

use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::sync::Arc;
use terrace_pool::{simulate_system, system_preset_text, SystemDescription, SystemPlan};
use terrace_sim::recording::RecordingSource;
use terrace_sim::{Recording, SimInput, SimSetup};
use terrace_types::Seed;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize, default| arguments.get(index).map_or(default, String::as_str);
    let text = system_preset_text("opal").ok_or("no preset")?;
    let mut system = SystemDescription::from_toml(text, "opal")?;
    system.hosts[0].count = argument(0, "2").parse()?;
    system.pools[0].count = argument(1, "2").parse()?;
    system.hosts[0].policy = argument(2, "alternate").to_owned();
    system.check("opal")?;
    let machine = terrace_machine::preset("disaggregated").ok_or("no preset")?;
    let input = match arguments.get(3) {
        None => SimSetup::new(&machine, "skew,accesses=300k,fast=32MiB")?.input,
        Some(path) => {
            let file = path.clone();
            let open = move || {
                Ok(Box::new(BufReader::new(File::open(&file)?)) as Box<dyn RecordingSource>)
            };
            SimInput::Recording { name: path.clone(), recording: Recording::new(Arc::new(open))? }
        }
    };
    let plan = SystemPlan::new(&system, "opal", &[machine], &[input], Seed(1))?;
    println!("host      seconds    IPC  frames: local and pools");
    for outcome in simulate_system(&plan, 2)?.hosts {
        let frames: Vec<u64> = outcome.pools.iter().map(|pool| pool.frames).collect();
        let (host, seconds) = (&outcome.host, outcome.run.seconds);
        println!("{host:<8} {seconds:>8.4} {:>6.3}  {frames:?}", outcome.ipc);
    }
    Ok(())
}
