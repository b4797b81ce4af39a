//! Closed forms for queues, to judge a fabric's results by, and to predict them without one.

/// The mean time that a message waits in an M/D/1 queue (Poisson arrivals, constant service), in
/// the unit of `service`, by Pollaczek and Khinchine: `rho / (2 (1 - rho))` services. `None` where
/// the utilisation is not in 0 to 1.
#[must_use]
pub fn mean_wait_md1(utilisation: f64, service: f64) -> Option<f64> {
    (0.0..1.0).contains(&utilisation).then(|| utilisation * service / (2.0 * (1.0 - utilisation)))
}

/// Throughput and mean times of a closed network.
#[derive(Debug, Clone, PartialEq)]
pub struct ClosedNetwork {
    /// Rounds a unit of time, all customers together.
    pub throughput: f64,
    /// Mean time at each queue, waiting and service, by the order of the services.
    pub residence: Vec<f64>,
}

/// Exact mean value analysis (Reiser and Lavenberg, JACM 1980): `customers` circulate through
/// queues with exponential service of these means, each served by arrival, and through a delay of
/// `think` in which nobody waits for another.
#[must_use]
pub fn solve_closed_network(services: &[f64], think: f64, customers: u32) -> ClosedNetwork {
    let mut lengths = vec![0.0; services.len()];
    let mut solved = ClosedNetwork { throughput: 0.0, residence: vec![0.0; services.len()] };
    for present in 1..=customers {
        // A customer that arrives finds the queues as they are with one customer fewer.
        for ((residence, service), length) in
            solved.residence.iter_mut().zip(services).zip(&lengths)
        {
            *residence = service * (1.0 + length);
        }
        let round = think + solved.residence.iter().sum::<f64>();
        solved.throughput = f64::from(present) / round;
        for (length, residence) in lengths.iter_mut().zip(&solved.residence) {
            *length = solved.throughput * residence;
        }
    }
    solved
}
