//! Literals, and the constants of each type that they stand for.

use super::QueryProblem;
use sqlparser::ast::{DataType, TypedString, Value};
use std::fmt::Write;
use tapetum_kernels::scan::program::Constant;
use tapetum_kernels::scan::{OwnedScalar, Scalar, ScalarType};

pub(super) const NO_DECIMAL: &str =
    "there is no decimal type: a number such as 12.50 is a float; keep exact amounts as integers, such as cents";

/// A literal in a text; its use decides its type.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Literal {
    Integer(i128),
    Decimal(f64),
    Text(String),
    Bytes(Vec<u8>),
    Timestamp(i64),
    Bool(bool),
    Null,
}

impl Literal {
    pub fn of(value: &Value) -> Result<Literal, QueryProblem> {
        Ok(match value {
            Value::Number(digits, _) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                Literal::Integer(digits.parse().map_err(|_| QueryProblem::Number)?)
            }
            Value::Number(digits, _) => Literal::Decimal(digits.parse().map_err(|_| QueryProblem::Number)?),
            Value::SingleQuotedString(text) => Literal::Text(text.clone()),
            Value::HexStringLiteral(digits) => Literal::Bytes(hex(digits).ok_or(QueryProblem::HexBytes)?),
            Value::Boolean(value) => Literal::Bool(*value),
            Value::Null => Literal::Null,
            Value::Placeholder(_) => return Err(QueryProblem::Unsupported("there is nothing to put in its place")),
            _ => return Err(QueryProblem::Unsupported("strings are written as 'text'")),
        })
    }

    /// `timestamp '…'` and the like.
    pub fn of_typed(typed: &TypedString) -> Result<Literal, QueryProblem> {
        match (&typed.data_type, &typed.value.value) {
            (DataType::Timestamp(..) | DataType::Date, Value::SingleQuotedString(text)) => {
                timestamp(text).map(Literal::Timestamp).ok_or(QueryProblem::Timestamp)
            }
            (DataType::Float(_), Value::SingleQuotedString(text)) => {
                text.parse().map(Literal::Decimal).map_err(|_| QueryProblem::Float)
            }
            (of, _) if is_decimal(of) => Err(QueryProblem::Unsupported(NO_DECIMAL)),
            _ => Err(QueryProblem::Unsupported("of typed strings there are timestamp '…', date '…' and float '…'")),
        }
    }

    pub fn negated(self) -> Result<Literal, QueryProblem> {
        match self {
            Literal::Integer(number) => Ok(Literal::Integer(-number)),
            Literal::Decimal(number) => Ok(Literal::Decimal(-number)),
            Literal::Null => Ok(Literal::Null),
            other => Err(QueryProblem::NotNumber(other.default_type().name())),
        }
    }

    /// The type that it has by itself.
    pub fn default_type(&self) -> ScalarType {
        match self {
            Literal::Integer(number) if i64::try_from(*number).is_err() => ScalarType::Unsigned,
            Literal::Integer(_) => ScalarType::Int,
            Literal::Decimal(_) => ScalarType::Float,
            Literal::Text(_) => ScalarType::Text,
            Literal::Bytes(_) => ScalarType::Bytes,
            Literal::Timestamp(_) => ScalarType::Timestamp,
            Literal::Bool(_) | Literal::Null => ScalarType::Bool,
        }
    }

    /// The constant for a value of this type; `None` if an integer is wanted and the number is none.
    pub fn constant(&self, wanted: ScalarType) -> Result<Option<Constant>, QueryProblem> {
        let value = match (self, wanted) {
            (Literal::Null, _) => return Ok(Some(Constant { scalar_type: wanted, value: None })),
            (Literal::Integer(number), ScalarType::Int | ScalarType::Unsigned) => match i64::try_from(*number) {
                Ok(number) => OwnedScalar::Int(number),
                Err(_) => OwnedScalar::Unsigned(u64::try_from(*number).map_err(|_| QueryProblem::Number)?),
            },
            (Literal::Integer(number), ScalarType::Float) => OwnedScalar::Float(*number as f64),
            (Literal::Decimal(_), ScalarType::Int | ScalarType::Unsigned) => return Ok(None),
            (Literal::Decimal(number), ScalarType::Float) => OwnedScalar::Float(*number),
            (Literal::Text(text), ScalarType::Text) => OwnedScalar::Text(text.as_str().into()),
            (Literal::Text(text), ScalarType::Bytes) => OwnedScalar::Bytes(text.as_bytes().into()),
            (Literal::Text(text), ScalarType::Timestamp) => {
                OwnedScalar::Timestamp(timestamp(text).ok_or(QueryProblem::Timestamp)?)
            }
            (Literal::Timestamp(micros), ScalarType::Timestamp) => OwnedScalar::Timestamp(*micros),
            (Literal::Bytes(bytes), ScalarType::Bytes) => OwnedScalar::Bytes(bytes.as_slice().into()),
            (Literal::Bool(value), ScalarType::Bool) => OwnedScalar::Bool(*value),
            (Literal::Integer(_) | Literal::Decimal(_), ScalarType::Timestamp) => return Err(QueryProblem::Timestamp),
            (other, wanted) => return Err(QueryProblem::types(wanted, other.default_type())),
        };
        Ok(Some(Constant::of(value)))
    }
}

pub(super) fn is_decimal(of: &DataType) -> bool {
    matches!(of, DataType::Decimal(_) | DataType::Dec(_) | DataType::Numeric(_))
}

/// The literal that stands for a value, and for no other one.
pub(super) fn literal_text(value: Option<Scalar<'_>>) -> String {
    match value {
        None => "NULL".into(),
        Some(Scalar::Bool(value)) => value.to_string(),
        Some(Scalar::Int(value)) => value.to_string(),
        Some(Scalar::Unsigned(value)) => value.to_string(),
        Some(Scalar::Float(value)) if value.is_finite() => format!("{value:?}"),
        Some(Scalar::Float(value)) => format!("float '{value}'"),
        Some(Scalar::Timestamp(micros)) => format!("timestamp '{}'", timestamp_text(micros)),
        Some(Scalar::Text(text)) => format!("'{}'", text.replace('\'', "''")),
        Some(Scalar::Bytes(bytes)) => {
            let mut text = String::with_capacity(2 * bytes.len() + 3);
            text.push_str("X'");
            bytes.iter().for_each(|byte| {
                let _ = write!(text, "{byte:02x}");
            });
            text.push('\'');
            text
        }
    }
}

fn hex(digits: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = digits.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let (pairs, []) = digits.as_deref()?.as_chunks::<2>() else { return None };
    Some(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

/// Microseconds since 1970 of a time in UTC: a date, and perhaps a time of day behind a space or `T`, and a `Z`. Of a time in no year from 0 to 9999 they
/// are written themselves.
fn timestamp(text: &str) -> Option<i64> {
    calendar_timestamp(text).or_else(|| text.parse().ok().filter(|micros| timestamp_text(*micros) == text))
}

fn calendar_timestamp(text: &str) -> Option<i64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = match text.split_once([' ', 'T']) {
        Some((date, time)) => (date, time),
        None => (text, "00:00:00"),
    };
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
    let is_time = hour < 24 && minute < 60 && second < 60;
    let is_fraction = (1..=6).contains(&fraction.len()) && fraction.bytes().all(|byte| byte.is_ascii_digit());
    if !is_time || !is_fraction || !(1..=12).contains(&month) || !(1..=days_of_month(year, month)).contains(&day) {
        return None;
    }
    let micros = fraction.parse::<i64>().ok()? * 10i64.pow(6 - fraction.len() as u32);
    let seconds = (days_since_1970(year, month, day) * 24 + hour) * 3600 + minute * 60 + second;
    Some(seconds * 1_000_000 + micros)
}

/// A time in UTC, as a query takes it, in years from 0 to 9999; else its microseconds since 1970.
pub fn timestamp_text(micros: i64) -> String {
    let (seconds, fraction) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Never too late.
    let mut year = 1970 + days.div_euclid(if days < 0 { 365 } else { 366 });
    while days_since_1970(year + 1, 1, 1) <= days {
        year += 1;
    }
    if !(0..=9999).contains(&year) {
        return micros.to_string();
    }
    let mut day = days - days_since_1970(year, 1, 1);
    let mut month = 1;
    while day >= days_of_month(year, month) {
        day -= days_of_month(year, month);
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let text = format!("{year:04}-{month:02}-{:02} {hour:02}:{minute:02}:{second:02}", day + 1);
    match fraction {
        0 => text,
        fraction => format!("{text}.{fraction:06}"),
    }
}

fn numbers(text: &str, between: char, digits: [usize; 3]) -> Option<[i64; 3]> {
    let mut parts = text.split(between);
    let mut all = [0; 3];
    for (number, digits) in all.iter_mut().zip(digits) {
        let part = parts.next()?;
        let is_number = part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit());
        *number = part.parse().ok().filter(|_| is_number)?;
    }
    parts.next().is_none().then_some(all)
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of_month(year: i64, month: i64) -> i64 {
    match month {
        2 => 28 + i64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    // Years before this one since the year 0, each with its leap day.
    let before = |year: i64| year * 365 + (year + 3) / 4 - (year + 99) / 100 + (year + 399) / 400;
    let months: i64 = (1..month).map(|month| days_of_month(year, month)).sum();
    before(year) - before(1970) + months + day - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (text, seconds) in [
            ("1970-01-01", 0),
            ("1970-01-02", 86_400),
            ("1969-12-31 23:59:59", -1),
            ("2000-02-29", 951_782_400),
            ("2000-03-01T00:00:00Z", 951_868_800),
            ("2026-11-26 05:45:00", 1_795_671_900),
            ("1900-03-01", -2_203_891_200),
            ("0001-01-01", -62_135_596_800),
            ("9999-12-31 23:59:59", 253_402_300_799),
        ] {
            assert_eq!(timestamp(text), Some(seconds * 1_000_000), "{text}");
        }
        for text in
            ["0001-01-01 00:00:00", "1600-02-29 12:34:56.000001", "1969-12-31 23:59:59.999999", "9999-12-31 23:59:59"]
        {
            assert_eq!(timestamp(text).map(timestamp_text).as_deref(), Some(text));
        }
        assert_eq!([i64::MIN, i64::MAX].map(timestamp_text), [i64::MIN, i64::MAX].map(|micros| micros.to_string()));
        assert_eq!(timestamp("1970-01-01 00:00:00.5"), Some(500_000));
        assert_eq!(timestamp("1970-01-01 00:00:00.000001Z"), Some(1));
        for text in [
            "",
            "2000",
            "2000-13-01",
            "2000-00-01",
            "1900-02-29",
            "2000-04-31",
            "2000-01-01 24:00:00",
            "2000-01-01 1:00:00",
            "2000-01-01 00:00",
            "2000-01-01 00:00:00.",
            "2000-01-01 00:00:00.1234567",
            "+200-01-01",
            "2000-01-01-01",
        ] {
            assert_eq!(timestamp(text), None, "{text}");
        }
    }
}
