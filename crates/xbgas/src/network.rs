//! The network between processing elements: its figures, and the fabric that they describe.

use terrace_fabric::{
    FabricError, FabricReservations, FabricTopology, LinkDescription, VertexDescription, VertexKind,
};
use terrace_types::{BytesPerSec, Nanos};

/// Bytes of a message besides data: address, object, operation and tag, as for messages of memory
/// pools (docs/system-file.md).
const HEADER_BYTES: u64 = 16;

/// A network, by its figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElementNetwork {
    /// From one element to another on the same switch, without queues; half of it is the switch's.
    pub latency: Nanos,
    /// Of each direction of an element's link; `None`: no limit.
    pub bandwidth: Option<BytesPerSec>,
    /// Messages that an element sends, and takes, in a microsecond at most; `None`: no limit.
    pub messages_per_us: Option<u32>,
    /// Elements on a switch; more switches than one hang on another above them.
    pub radix: u32,
}

/// Why a network cannot be read or built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Neither a preset nor figures.
    #[error(
        "no network {0:?}; give 100ns, 200ns or figures such as \
         latency_ns=150,bandwidth_bytes_per_s=12500000000,messages_per_us=200,radix=16"
    )]
    Unknown(String),
    /// A figure that cannot be.
    #[error("network: {key}={value}; give {wanted}")]
    Figure {
        /// Its key.
        key: &'static str,
        /// What was given.
        value: u64,
        /// What can be.
        wanted: &'static str,
    },
    /// The fabric refuses.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

impl ElementNetwork {
    /// The preset with this latency: link and rate of a 100 Gb/s adapter (Mellanox, "ConnectX-5
    /// VPI card", product brief: 100 Gb/s, 200 million messages a second), 36 ports a switch
    /// (Mellanox, "Switch-IB 2 SB7800", product brief).
    #[must_use]
    pub const fn preset(latency: Nanos) -> Self {
        Self {
            latency,
            bandwidth: Some(BytesPerSec(12_500_000_000)),
            messages_per_us: Some(200),
            radix: 36,
        }
    }

    /// Reads `100ns`, `200ns`, or figures by key, each of which takes the place of the 100 ns
    /// preset's; 0 stands for no limit.
    ///
    /// # Errors
    /// [`NetworkError::Unknown`], [`NetworkError::Figure`].
    pub fn parse(text: &str) -> Result<Self, NetworkError> {
        let unknown = || NetworkError::Unknown(text.chars().take(80).collect());
        let mut network = Self::preset(Nanos(100));
        match text {
            "100ns" => return Ok(network),
            "200ns" => return Ok(Self::preset(Nanos(200))),
            _ => {}
        }
        for figure in text.split(',') {
            let (key, value) = figure.split_once('=').ok_or_else(unknown)?;
            let value: u64 = value.parse().map_err(|_| unknown())?;
            let limit = (value != 0).then_some(value);
            let refused = |key, wanted| NetworkError::Figure { key, value, wanted };
            match key {
                "latency_ns" if !(2..=1_000_000).contains(&value) => {
                    return Err(refused("latency_ns", "2 to 1000000"));
                }
                "latency_ns" => network.latency = Nanos(value),
                "bandwidth_bytes_per_s" => network.bandwidth = limit.map(BytesPerSec),
                "messages_per_us" if value > 1_000_000 => {
                    return Err(refused("messages_per_us", "at most 1000000"));
                }
                "messages_per_us" => network.messages_per_us = limit.map(|rate| rate as u32),
                "radix" if !(2..=1024).contains(&value) => {
                    return Err(refused("radix", "2 to 1024"));
                }
                "radix" => network.radix = value as u32,
                _ => return Err(unknown()),
            }
        }
        Ok(network)
    }

    /// Bytes of a message that carries so much data.
    #[must_use]
    pub const fn message_bytes(data: u64) -> u64 {
        HEADER_BYTES + data
    }

    /// The fabric between so many elements, of which element n is endpoint n.
    ///
    /// # Errors
    /// [`NetworkError::Fabric`].
    pub fn build(&self, elements: u32) -> Result<FabricReservations, NetworkError> {
        let radix = self.radix.max(1);
        let leaves = elements.div_ceil(radix);
        let mut vertices: Vec<VertexDescription> = (0..elements)
            .map(|n| VertexDescription { name: format!("pe{n}"), kind: VertexKind::Endpoint })
            .collect();
        // Half of the latency in the switch, a quarter in each link; what does not divide, there.
        let wire = Nanos(self.latency.get() / 4);
        let latency = Nanos(self.latency.get() - 2 * wire.get());
        let switch = |name| VertexDescription {
            name,
            kind: VertexKind::Switch { latency, bandwidth: None },
        };
        vertices.extend((0..leaves).map(|n| switch(format!("switch{n}"))));
        let link = |a, b, bandwidth| LinkDescription { ends: [a, b], latency: wire, bandwidth };
        let mut links: Vec<LinkDescription> = (0..elements)
            .map(|n| link(format!("pe{n}"), format!("switch{}", n / radix), self.bandwidth))
            .collect();
        if leaves > 1 {
            vertices.push(switch("spine".into()));
            // A link upwards carries what all links below it carry together.
            let up = self.bandwidth.map(|b| BytesPerSec(b.get().saturating_mul(radix.into())));
            links.extend((0..leaves).map(|n| link(format!("switch{n}"), "spine".into(), up)));
        }
        let gap_ps = self.messages_per_us.map_or(0, |rate| 1_000_000 / u64::from(rate));
        Ok(FabricReservations::new(FabricTopology::new(vertices, links)?, gap_ps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_fabric::VertexId;

    #[test]
    fn figures_are_read_and_wrong_ones_refused() {
        assert_eq!(ElementNetwork::parse("100ns"), Ok(ElementNetwork::preset(Nanos(100))));
        let network = ElementNetwork::parse("latency_ns=150,messages_per_us=0,radix=4").unwrap();
        assert_eq!(network.latency, Nanos(150));
        assert_eq!((network.messages_per_us, network.radix), (None, 4));
        assert_eq!(network.bandwidth, Some(BytesPerSec(12_500_000_000)));
        for wrong in ["", "300ns", "latency_ns", "latency_ns=x", "ports=3"] {
            assert!(matches!(ElementNetwork::parse(wrong), Err(NetworkError::Unknown(_))));
        }
        for wrong in ["latency_ns=1", "radix=1", "messages_per_us=1000001"] {
            assert!(matches!(ElementNetwork::parse(wrong), Err(NetworkError::Figure { .. })));
        }
    }

    #[test]
    fn latency_is_that_of_a_switch_and_three_switches_apart() {
        let network = ElementNetwork {
            bandwidth: None,
            messages_per_us: None,
            radix: 2,
            ..ElementNetwork::preset(Nanos(100))
        };
        let mut fabric = network.build(5).unwrap();
        let mut time = |to| fabric.pass((VertexId(0), VertexId(to)), 80, 1000, 0).unwrap();
        assert_eq!(time(1), 101_000);
        // Four links and three switches.
        assert_eq!(time(4), 1000 + 4 * 25_000 + 3 * 50_000);
        // Odd latencies are kept whole.
        let odd = ElementNetwork { latency: Nanos(151), ..network };
        assert_eq!(odd.build(2).unwrap().topology().least_latency_ps(), Some(151_000));
    }
}
