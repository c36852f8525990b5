//! Aggregates: single values computed from many. The states of parts of the records merge to the state of all records.
//!
//! ```text
//! state:  count   values u64
//!         sum, avg of integers    values u64 · sum i128       of floats    values u64 · sum f64
//!         min, max                is there u8 · the value, as in a row ([`super::rows`])
//!         count of distinct ones  the values ([`super::distinct`])
//! ```
//! 1. NULLs are skipped. Without values, both counts are 0, and all other aggregates are NULL.
//! 2. Sums of integers are exact. A sum that a signed integer of 64 bits does not hold is NULL.
//! 3. Sums of floats depend in their last bits on the order of additions, and so on how the records were divided.

use super::distinct::DistinctValues;
use super::rows::read_scalar;
use super::value::{OwnedScalar, Scalar, ScalarType};
use super::wire::{ScanReader, WireError};
use std::cmp::Ordering;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum AggregateKind {
    Count = 1,
    Sum = 2,
    Min = 3,
    Max = 4,
    Average = 5,
    CountDistinct = 6,
}

impl AggregateKind {
    pub const ALL: [AggregateKind; 6] = [
        AggregateKind::Count,
        AggregateKind::Sum,
        AggregateKind::Min,
        AggregateKind::Max,
        AggregateKind::Average,
        AggregateKind::CountDistinct,
    ];

    pub fn of_code(code: u8) -> Option<AggregateKind> {
        AggregateKind::ALL.into_iter().find(|kind| *kind as u8 == code)
    }

    /// The type of the result for values of this type; `None` if the aggregate does not take such values.
    pub fn result_type(self, of: ScalarType) -> Option<ScalarType> {
        match self {
            AggregateKind::Count | AggregateKind::CountDistinct => Some(ScalarType::Int),
            AggregateKind::Min | AggregateKind::Max => Some(of),
            AggregateKind::Sum if of.is_integer() => Some(ScalarType::Int),
            AggregateKind::Sum | AggregateKind::Average => of.is_number().then_some(ScalarType::Float),
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub enum AggregateState {
    Count(u64),
    IntSum {
        values: u64,
        sum: i128,
    },
    FloatSum {
        values: u64,
        sum: f64,
    },
    /// The least, or the greatest, value so far.
    Extreme(Option<OwnedScalar>),
    Distinct(DistinctValues),
}

impl AggregateState {
    /// The state of no values.
    pub fn new(kind: AggregateKind, of: ScalarType) -> AggregateState {
        match kind {
            AggregateKind::Count => AggregateState::Count(0),
            AggregateKind::CountDistinct => AggregateState::Distinct(DistinctValues::default()),
            AggregateKind::Min | AggregateKind::Max => AggregateState::Extreme(None),
            AggregateKind::Sum | AggregateKind::Average if of.is_integer() => {
                AggregateState::IntSum { values: 0, sum: 0 }
            }
            AggregateKind::Sum | AggregateKind::Average => AggregateState::FloatSum { values: 0, sum: 0.0 },
        }
    }

    /// Adds a value that is not NULL, of the type that the state was made for. Returns how many bytes more the state
    /// holds, or fewer.
    #[inline]
    pub fn add(&mut self, kind: AggregateKind, value: Scalar<'_>) -> isize {
        match (self, value) {
            (AggregateState::Count(values), _) => *values += 1,
            (AggregateState::IntSum { values, sum }, value) => {
                *values += 1;
                // 2^64 values of 64 bits do not overflow.
                *sum += value.integer().unwrap_or(0);
            }
            (AggregateState::FloatSum { values, sum }, Scalar::Float(value)) => {
                *values += 1;
                *sum += value;
            }
            (AggregateState::FloatSum { .. }, _) => unreachable!("a checked query adds numbers of one kind"),
            (AggregateState::Distinct(values), value) => return values.add(value),
            (AggregateState::Extreme(extreme), value) => {
                let wanted = if kind == AggregateKind::Min { Ordering::Less } else { Ordering::Greater };
                let is_better = |extreme: &OwnedScalar| value.compare(extreme.as_scalar()) == Some(wanted);
                if extreme.as_ref().is_none_or(is_better) {
                    let before = extreme.as_ref().map_or(0, OwnedScalar::heap_bytes);
                    *extreme = Some(value.to_owned());
                    return value.bytes().map_or(0, <[u8]>::len) as isize - before as isize;
                }
            }
        }
        0
    }

    /// Merges the state of other records. Returns how many bytes more the state holds, or fewer.
    pub fn merge(&mut self, kind: AggregateKind, other: &AggregateState) -> isize {
        match (&mut *self, other) {
            (AggregateState::Count(values), AggregateState::Count(more)) => *values = values.saturating_add(*more),
            (AggregateState::IntSum { values, sum }, AggregateState::IntSum { values: more, sum: addend }) => {
                *values = values.saturating_add(*more);
                *sum = sum.saturating_add(*addend);
            }
            (AggregateState::FloatSum { values, sum }, AggregateState::FloatSum { values: more, sum: addend }) => {
                *values = values.saturating_add(*more);
                *sum += addend;
            }
            (AggregateState::Extreme(_), AggregateState::Extreme(Some(value))) => {
                return self.add(kind, value.as_scalar());
            }
            (AggregateState::Extreme(_), AggregateState::Extreme(None)) => {}
            (AggregateState::Distinct(values), AggregateState::Distinct(more)) => return values.merge(more),
            _ => unreachable!("states of one aggregate merge"),
        }
        0
    }

    /// The result; `None` for NULL.
    pub fn result(&self, kind: AggregateKind) -> Option<OwnedScalar> {
        match self {
            // No store has 2^63 records.
            AggregateState::Count(values) => Some(OwnedScalar::Int(i64::try_from(*values).unwrap_or(i64::MAX))),
            AggregateState::Distinct(values) => Some(OwnedScalar::Int(values.count() as i64)),
            AggregateState::IntSum { values: 0, .. } | AggregateState::FloatSum { values: 0, .. } => None,
            AggregateState::IntSum { values, sum } if kind == AggregateKind::Average => {
                Some(OwnedScalar::Float(*sum as f64 / *values as f64))
            }
            AggregateState::IntSum { sum, .. } => i64::try_from(*sum).ok().map(OwnedScalar::Int),
            AggregateState::FloatSum { values, sum } if kind == AggregateKind::Average => {
                Some(OwnedScalar::Float(*sum / *values as f64))
            }
            AggregateState::FloatSum { sum, .. } => Some(OwnedScalar::Float(*sum)),
            AggregateState::Extreme(extreme) => extreme.clone(),
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            AggregateState::Count(values) => out.extend_from_slice(&values.to_le_bytes()),
            AggregateState::IntSum { values, sum } => {
                out.extend_from_slice(&values.to_le_bytes());
                out.extend_from_slice(&sum.to_le_bytes());
            }
            AggregateState::FloatSum { values, sum } => {
                out.extend_from_slice(&values.to_le_bytes());
                out.extend_from_slice(&sum.to_bits().to_le_bytes());
            }
            AggregateState::Distinct(values) => values.encode(out),
            AggregateState::Extreme(extreme) => {
                let value = extreme.as_ref().map(OwnedScalar::as_scalar);
                super::rows::write_row(1, [value].into_iter(), out);
            }
        }
    }

    pub fn decode(
        kind: AggregateKind,
        of: ScalarType,
        reader: &mut ScanReader<'_>,
    ) -> Result<AggregateState, WireError> {
        Ok(match AggregateState::new(kind, of) {
            AggregateState::Count(_) => AggregateState::Count(reader.u64()?),
            AggregateState::IntSum { .. } => {
                AggregateState::IntSum { values: reader.u64()?, sum: i128::from_le_bytes(reader.array()?) }
            }
            AggregateState::FloatSum { .. } => {
                AggregateState::FloatSum { values: reader.u64()?, sum: f64::from_bits(reader.u64()?) }
            }
            AggregateState::Distinct(_) => AggregateState::Distinct(DistinctValues::decode(reader)?),
            AggregateState::Extreme(_) => match reader.u8()? {
                0 => AggregateState::Extreme(None),
                1 => AggregateState::Extreme(Some(read_scalar(of, reader)?.to_owned())),
                _ => return Err(WireError::Malformed),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(kind: AggregateKind, values: &[Scalar<'_>]) -> AggregateState {
        let mut state = AggregateState::new(kind, values.first().map_or(ScalarType::Int, |value| value.scalar_type()));
        values.iter().for_each(|value| {
            state.add(kind, *value);
        });
        state
    }

    #[test]
    fn parts_merge_to_the_whole() {
        let ints = [3, -7, i64::MAX, 12, 0].map(Scalar::Int);
        let floats = [1.5, -2.0, 0.25, 1e3, 0.0].map(Scalar::Float);
        let texts = ["b", "", "abc", "ä", "a"].map(Scalar::Text);
        for (values, kinds) in [
            (ints, &AggregateKind::ALL[..]),
            (floats, &AggregateKind::ALL),
            (texts, &[AggregateKind::Count, AggregateKind::Min, AggregateKind::Max, AggregateKind::CountDistinct]),
        ] {
            for kind in kinds {
                let whole = state(*kind, &values);
                for cut in 0..=values.len() {
                    let (left, right) = values.split_at(cut);
                    let of = values[0].scalar_type();
                    let part = |values: &[Scalar<'_>]| {
                        let mut part = AggregateState::new(*kind, of);
                        values.iter().for_each(|value| {
                            part.add(*kind, *value);
                        });
                        let mut bytes = Vec::new();
                        part.encode(&mut bytes);
                        let mut reader = ScanReader::new(&bytes);
                        let read = AggregateState::decode(*kind, of, &mut reader).unwrap();
                        assert!(read == part && reader.is_empty());
                        read
                    };
                    let mut merged = part(left);
                    merged.merge(*kind, &part(right));
                    assert_eq!(merged, whole, "{kind:?} cut at {cut}");
                }
            }
        }
    }

    #[test]
    fn results_are_those_of_sql() {
        use AggregateKind::{Average, Count, CountDistinct, Max, Min, Sum};
        let int = |value| Some(OwnedScalar::Int(value));
        let ints = [1, 2, 4].map(Scalar::Int);
        assert_eq!([Count, Sum, Min, Max].map(|kind| state(kind, &ints).result(kind)), [3, 7, 1, 4].map(int));
        assert_eq!(state(Average, &ints).result(Average), Some(OwnedScalar::Float(7.0 / 3.0)));
        assert_eq!([Count, Sum, Min, Average].map(|kind| state(kind, &[]).result(kind)), [int(0), None, None, None]);
        let twice = [1, 2, 1].map(Scalar::Int);
        assert_eq!([&twice[..], &[]].map(|values| state(CountDistinct, values).result(CountDistinct)), [2, 0].map(int));
        let greatest = [i64::MAX, 1].map(Scalar::Int);
        assert_eq!(state(Sum, &greatest).result(Sum), None, "it does not fit");
        let back = [i64::MAX, 1, -2].map(Scalar::Int);
        assert_eq!(state(Sum, &back).result(Sum), int(i64::MAX - 1));
        let unsigned = [u64::MAX, u64::MAX].map(Scalar::Unsigned);
        assert_eq!(state(Average, &unsigned).result(Average), Some(OwnedScalar::Float(u64::MAX as f64)));
        let nan = [f64::NAN, 1.0].map(Scalar::Float);
        assert_eq!(state(Min, &nan).result(Min), Some(OwnedScalar::Float(1.0)));
    }
}
