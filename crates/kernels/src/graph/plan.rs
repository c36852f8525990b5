//! The plan of a computation over a graph. A drive gets it as the parameters of its program.
//!
//! ```text
//!         0         1      2       3      4       5          9      17      21           25
//!         +---------+------+-------+------+-------+----------+------+-------+------------+
//!         | version | step | flags | part | parts | samples  | seed | top   | memory MiB |
//!         | u8      | u8   | u8    | u8   | u8    | u32      | u64  | u32   | u32        |
//!         +---------+------+-------+------+-------+----------+------+-------+------------+
//!         step: 0 compute, 1 merge      flags: bit 0 undirected, bit 1 normalized, bit 2 a record that does not fit ends it
//!         samples: 0 the work decides by the number of edges, all ones: all nodes are sources
//! ```
//! All numbers are little-endian.

use super::{Direction, Normalization};
use crate::scan::wire::{ScanReader, WireError};

pub const PLAN_VERSION: u8 = 1;
pub const PLAN_BYTES: usize = 25;
pub const GRAPH_PARTS_MAX: u8 = 64;
const FLAG_UNDIRECTED: u8 = 1;
const FLAG_NORMALIZED: u8 = 2;
const FLAG_STRICT: u8 = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GraphStep {
    Compute,
    Merge,
}

/// Which nodes are sources.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sampling {
    /// All nodes of graphs up to [`super::EXACT_EDGES_MAX`] edges; [`super::SAMPLES_AUTOMATIC`] nodes of larger ones.
    Automatic,
    Exact,
    /// This many nodes, or all, if there are no more.
    Samples(u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GraphPlan {
    pub step: GraphStep,
    pub direction: Direction,
    pub normalization: Normalization,
    /// Whether a record that does not fit the format ends the computation.
    pub is_strict: bool,
    pub part: u8,
    pub parts: u8,
    pub sampling: Sampling,
    pub seed: u64,
    /// The number of nodes in the result.
    pub top: u32,
    pub memory_mib: u32,
}

impl GraphPlan {
    pub fn encode(&self) -> [u8; PLAN_BYTES] {
        let mut bytes = [0; PLAN_BYTES];
        let flag = |is: bool, flag| if is { flag } else { 0 };
        bytes[..5].copy_from_slice(&[
            PLAN_VERSION,
            self.step as u8,
            flag(self.direction == Direction::Undirected, FLAG_UNDIRECTED)
                | flag(self.normalization == Normalization::Pairs, FLAG_NORMALIZED)
                | flag(self.is_strict, FLAG_STRICT),
            self.part,
            self.parts,
        ]);
        let samples = match self.sampling {
            Sampling::Automatic => 0,
            Sampling::Exact => u32::MAX,
            Sampling::Samples(samples) => samples.clamp(1, u32::MAX - 1),
        };
        bytes[5..9].copy_from_slice(&samples.to_le_bytes());
        bytes[9..17].copy_from_slice(&self.seed.to_le_bytes());
        bytes[17..21].copy_from_slice(&self.top.to_le_bytes());
        bytes[21..].copy_from_slice(&self.memory_mib.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<GraphPlan, WireError> {
        let mut reader = ScanReader::new(bytes);
        let [version, step, flags, part, parts] = reader.array()?;
        if version != PLAN_VERSION {
            return Err(WireError::Version(version));
        }
        let step = [GraphStep::Compute, GraphStep::Merge].into_iter().find(|known| *known as u8 == step);
        let step = step.ok_or(WireError::Malformed)?;
        let sampling = match reader.u32()? {
            0 => Sampling::Automatic,
            u32::MAX => Sampling::Exact,
            samples => Sampling::Samples(samples),
        };
        let (seed, top, memory_mib) = (reader.u64()?, reader.u32()?, reader.u32()?);
        let is_known = flags & !(FLAG_UNDIRECTED | FLAG_NORMALIZED | FLAG_STRICT) == 0;
        if !is_known || part >= parts || parts > GRAPH_PARTS_MAX || !reader.is_empty() {
            return Err(WireError::Malformed);
        }
        let direction = if flags & FLAG_UNDIRECTED == 0 { Direction::Directed } else { Direction::Undirected };
        let normalization = if flags & FLAG_NORMALIZED == 0 { Normalization::None } else { Normalization::Pairs };
        let is_strict = flags & FLAG_STRICT != 0;
        Ok(GraphPlan { step, direction, normalization, is_strict, part, parts, sampling, seed, top, memory_mib })
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        u64::from(self.memory_mib) << 20
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub const PLAN: GraphPlan = GraphPlan {
        step: GraphStep::Compute,
        direction: Direction::Directed,
        normalization: Normalization::None,
        is_strict: false,
        part: 0,
        parts: 1,
        sampling: Sampling::Exact,
        seed: 1,
        top: 5,
        memory_mib: 16,
    };

    #[test]
    fn plans_read_back() {
        for sampling in [Sampling::Exact, Sampling::Automatic, Sampling::Samples(20)] {
            let plan = GraphPlan { sampling, parts: 3, part: 2, direction: Direction::Undirected, ..PLAN };
            assert_eq!(GraphPlan::decode(&plan.encode()), Ok(plan));
            let mut other = plan.encode();
            other[0] = 2;
            assert_eq!(GraphPlan::decode(&other), Err(WireError::Version(2)));
        }
        for (at, byte) in [(1, 2), (2, 8), (3, 3), (4, 65)] {
            let mut bytes = GraphPlan { parts: 3, ..PLAN }.encode();
            bytes[at] = byte;
            assert_eq!(GraphPlan::decode(&bytes), Err(WireError::Malformed), "{at}");
        }
        assert_eq!(GraphPlan::decode(&PLAN.encode()[..24]), Err(WireError::Short));
    }
}
