//! What a node gives one CPU while another loads it, over time: `degrade_states [SECONDS]
//! [EVERY_MS] [ADDS,...]`. Prints for each round what is left without load and with each load, what
//! the load takes meanwhile, and what it takes alone, GB/s. For machines whose buses change under a
//! virtual machine.

use terrace_probe::degrade::{Knobs, Loader, ThreadSampler};
use terrace_sys::{now, own_cpus, sleep, zones, Root};
use terrace_types::{Bytes, Nanos};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let number = |at: usize, otherwise: u64| {
        std::env::args().nth(at).and_then(|a| a.parse().ok()).unwrap_or(otherwise)
    };
    let (span, every) = (Nanos::secs(number(1, 10)), Nanos::millis(number(2, 100)));
    let adds = std::env::args().nth(3).unwrap_or("0,200".to_owned());
    let adds: Vec<u32> = adds.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let cpus = own_cpus()?;
    let (Some(first), Some(last)) = (cpus.first(), cpus.last()) else {
        return Err("no CPU".into());
    };
    let node = *zones::nodes_with_memory(&Root::live()).first().ok_or("no memory")?;
    let region = Bytes::mib(256);
    let loader = Loader::start(&[*last], node, region)?;
    let mut sampler = ThreadSampler::start(&[*first], node, region)?;
    sampler.on_first()?;
    let began = now();
    while now().since(began) < span {
        let mut line = format!("{:7.2} s", now().since(began).as_secs_f64());
        for adds in std::iter::once(None).chain(adds.iter().map(|a| Some(*a))) {
            let knobs =
                Knobs { threads: u32::from(adds.is_some()), adds: adds.unwrap_or(0), region };
            loader.set(knobs)?;
            sleep(Nanos::millis(1));
            let (at, before) = (now(), loader.bytes());
            sleep(Nanos::millis(3));
            let alone = (loader.bytes() - before) as f64 / now().since(at).get().max(1) as f64;
            match sampler.read(&loader) {
                Some(r) => {
                    line += &format!(
                        "   {:5.1} {:5.1} {alone:5.1}",
                        r.left.get() as f64 / 1e9,
                        r.load.get() as f64 / 1e9
                    );
                }
                None => line += &format!("       -     - {alone:5.1}"),
            }
        }
        println!("{line}");
        sleep(every);
    }
    Ok(())
}
