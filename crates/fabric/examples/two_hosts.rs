//! Two hosts read from one pool through a switch; one of them has three times the other's weight.

use terrace_fabric::*;
use terrace_types::{BytesPerSec, Nanos};

fn main() -> Result<(), FabricError> {
    let endpoint =
        |name: &str| VertexDescription { name: name.to_owned(), kind: VertexKind::Endpoint };
    let switch = VertexKind::Switch { latency: Nanos(10), bandwidth: None };
    let mut vertices: Vec<_> = ["host0", "host1", "pool"].into_iter().map(endpoint).collect();
    vertices.push(VertexDescription { name: "switch".to_owned(), kind: switch });
    let links = ["host0", "host1", "pool"].map(|end| LinkDescription {
        ends: [end.to_owned(), "switch".to_owned()],
        latency: Nanos(20),
        bandwidth: Some(BytesPerSec(1_000_000_000)),
    });
    let topology = FabricTopology::new(vertices, links.to_vec())?;
    let share = |weight| ClassShare { weight, cap: None };
    let shares = vec![share(3), share(1)];
    let mut fabric = FabricQueues::new(topology, ServiceOrder::WeightedFair, shares)?;
    for id in 0..200 {
        let host = (id % 2) as u16;
        let (class, to) = (TrafficClass(host), VertexId(host.into()));
        fabric.submit(FabricMessage { id, class, from: VertexId(2), to, bytes: 128 }, 0)?;
    }
    let mut deliveries = Vec::new();
    fabric.advance(u64::MAX, &mut deliveries);
    for host in 0..2 {
        let of_host = deliveries.iter().filter(|d| d.message.class == TrafficClass(host));
        let last_ps = of_host.map(|d| d.arrived_ps).max().unwrap_or_default();
        println!("host{host}: 100 messages of 128 B by {} ns", last_ps / PS_PER_NS);
    }
    Ok(())
}
