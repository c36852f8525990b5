//! The values that conditions use, and their order.
//!
//! 1. Order is total: NaN equals itself and is greater than all other floats, and -0 equals 0.
//! 2. A signed and an unsigned integer compare by their values.

use std::cmp::Ordering;

/// The types of a program's registers. Fields of every width have one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ScalarType {
    Bool = 1,
    /// Signed, 64 bits.
    Int = 2,
    /// 64 bits. Narrower fields are [`ScalarType::Int`].
    Unsigned = 3,
    Float = 4,
    /// Microseconds since 1970, as a signed number of 64 bits.
    Timestamp = 5,
    Text = 6,
    Bytes = 7,
}

impl ScalarType {
    pub const ALL: [ScalarType; 7] = [
        ScalarType::Bool,
        ScalarType::Int,
        ScalarType::Unsigned,
        ScalarType::Float,
        ScalarType::Timestamp,
        ScalarType::Text,
        ScalarType::Bytes,
    ];

    pub fn of_code(code: u8) -> Option<ScalarType> {
        ScalarType::ALL.into_iter().find(|scalar| *scalar as u8 == code)
    }

    pub fn is_integer(self) -> bool {
        matches!(self, ScalarType::Int | ScalarType::Unsigned)
    }

    pub fn is_number(self) -> bool {
        self.is_integer() || self == ScalarType::Float
    }

    /// Whether the type's values are bytes that lie elsewhere.
    pub fn is_span(self) -> bool {
        matches!(self, ScalarType::Text | ScalarType::Bytes)
    }

    pub fn name(self) -> &'static str {
        match self {
            ScalarType::Bool => "bool",
            ScalarType::Int => "integer",
            ScalarType::Unsigned => "unsigned integer",
            ScalarType::Float => "float",
            ScalarType::Timestamp => "timestamp",
            ScalarType::Text => "string",
            ScalarType::Bytes => "bytes",
        }
    }
}

/// A value that is not NULL. NULL is `None`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scalar<'a> {
    Bool(bool),
    Int(i64),
    Unsigned(u64),
    Float(f64),
    /// Microseconds since 1970.
    Timestamp(i64),
    Text(&'a str),
    Bytes(&'a [u8]),
}

impl<'a> Scalar<'a> {
    pub fn scalar_type(self) -> ScalarType {
        match self {
            Scalar::Bool(_) => ScalarType::Bool,
            Scalar::Int(_) => ScalarType::Int,
            Scalar::Unsigned(_) => ScalarType::Unsigned,
            Scalar::Float(_) => ScalarType::Float,
            Scalar::Timestamp(_) => ScalarType::Timestamp,
            Scalar::Text(_) => ScalarType::Text,
            Scalar::Bytes(_) => ScalarType::Bytes,
        }
    }

    /// The order of two values of types that compare; `None` for others.
    pub fn compare(self, other: Scalar<'_>) -> Option<Ordering> {
        match (self, other) {
            (Scalar::Bool(a), Scalar::Bool(b)) => Some(a.cmp(&b)),
            (Scalar::Float(a), Scalar::Float(b)) => Some(compare_floats(a, b)),
            (Scalar::Timestamp(a), Scalar::Timestamp(b)) => Some(a.cmp(&b)),
            (Scalar::Text(a), Scalar::Text(b)) => Some(a.as_bytes().cmp(b.as_bytes())),
            (Scalar::Bytes(a), Scalar::Bytes(b)) => Some(a.cmp(b)),
            (a, b) => Some(a.integer()?.cmp(&b.integer()?)),
        }
    }

    /// The value of a signed or unsigned integer.
    pub fn integer(self) -> Option<i128> {
        match self {
            Scalar::Int(number) => Some(number.into()),
            Scalar::Unsigned(number) => Some(number.into()),
            _ => None,
        }
    }

    pub fn to_owned(self) -> OwnedScalar {
        match self {
            Scalar::Bool(value) => OwnedScalar::Bool(value),
            Scalar::Int(value) => OwnedScalar::Int(value),
            Scalar::Unsigned(value) => OwnedScalar::Unsigned(value),
            Scalar::Float(value) => OwnedScalar::Float(value),
            Scalar::Timestamp(value) => OwnedScalar::Timestamp(value),
            Scalar::Text(value) => OwnedScalar::Text(value.into()),
            Scalar::Bytes(value) => OwnedScalar::Bytes(value.into()),
        }
    }

    /// The bytes of a text or of bytes.
    pub fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Scalar::Text(text) => Some(text.as_bytes()),
            Scalar::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// A [`Scalar`] that holds its bytes.
#[derive(Clone, PartialEq, Debug)]
pub enum OwnedScalar {
    Bool(bool),
    Int(i64),
    Unsigned(u64),
    Float(f64),
    Timestamp(i64),
    Text(Box<str>),
    Bytes(Box<[u8]>),
}

impl OwnedScalar {
    pub fn as_scalar(&self) -> Scalar<'_> {
        match self {
            OwnedScalar::Bool(value) => Scalar::Bool(*value),
            OwnedScalar::Int(value) => Scalar::Int(*value),
            OwnedScalar::Unsigned(value) => Scalar::Unsigned(*value),
            OwnedScalar::Float(value) => Scalar::Float(*value),
            OwnedScalar::Timestamp(value) => Scalar::Timestamp(*value),
            OwnedScalar::Text(value) => Scalar::Text(value),
            OwnedScalar::Bytes(value) => Scalar::Bytes(value),
        }
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.as_scalar().bytes().map_or(0, <[u8]>::len)
    }
}

/// The total order of floats.
pub fn compare_floats(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_have_a_total_order() {
        assert_eq!(compare_floats(f64::NAN, f64::NAN), Ordering::Equal);
        assert_eq!(compare_floats(f64::NAN, f64::INFINITY), Ordering::Greater);
        assert_eq!(compare_floats(f64::NEG_INFINITY, f64::NAN), Ordering::Less);
        assert_eq!(compare_floats(-0.0, 0.0), Ordering::Equal);
    }

    #[test]
    fn integers_of_both_kinds_compare_by_their_worth() {
        let ordering = |a: Scalar<'_>, b: Scalar<'_>| a.compare(b);
        assert_eq!(ordering(Scalar::Int(-1), Scalar::Unsigned(u64::MAX)), Some(Ordering::Less));
        assert_eq!(ordering(Scalar::Unsigned(7), Scalar::Int(7)), Some(Ordering::Equal));
        assert_eq!(ordering(Scalar::Unsigned(1 << 63), Scalar::Int(i64::MAX)), Some(Ordering::Greater));
        assert_eq!(ordering(Scalar::Int(1), Scalar::Float(1.0)), None);
        assert_eq!(ordering(Scalar::Text("a"), Scalar::Bytes(b"a")), None);
    }
}
