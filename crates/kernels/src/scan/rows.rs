//! Rows as bytes: how results cross from the drive, and what groups are known by.
//!
//! ```text
//! row:  a bit for each column that is there, in whole bytes · the values that are there
//!       bool 1 byte · numbers, timestamps 8 bytes, little endian · string, bytes: length as a varint, bytes
//! ```
//! 1. Columns have the types that the reader and the writer agree on.
//! 2. Two rows of the same types are of the same bytes exactly when their values are equal: NaN is written in one way, and -0 as 0.

use super::value::{Scalar, ScalarType};
use super::wire::{ScanReader, WireError};

/// Appends a row of so many columns.
pub fn write_row<'a>(columns: usize, values: impl Iterator<Item = Option<Scalar<'a>>>, out: &mut Vec<u8>) {
    let there_at = out.len();
    out.resize(there_at + columns.div_ceil(8), 0);
    for (column, value) in values.enumerate() {
        let Some(value) = value else { continue };
        out[there_at + column / 8] |= 1 << (column % 8);
        match value {
            Scalar::Bool(value) => out.push(u8::from(value)),
            Scalar::Int(value) | Scalar::Timestamp(value) => out.extend_from_slice(&value.to_le_bytes()),
            Scalar::Unsigned(value) => out.extend_from_slice(&value.to_le_bytes()),
            Scalar::Float(value) => out.extend_from_slice(&one_form(value).to_bits().to_le_bytes()),
            Scalar::Text(value) => write_bytes(value.as_bytes(), out),
            Scalar::Bytes(value) => write_bytes(value, out),
        }
    }
}

/// The value that stands for all that equal it.
pub(super) fn one_form(value: f64) -> f64 {
    // Adding 0 makes 0 of -0.
    if value.is_nan() { f64::NAN } else { value + 0.0 }
}

fn write_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    write_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Seven bits a byte, the lowest first.
pub fn write_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub fn read_varint(reader: &mut ScanReader<'_>) -> Result<u64, WireError> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = reader.u8()?;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return Err(WireError::Malformed);
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(WireError::Malformed)
}

/// Reads a row and shows its values in order.
pub fn read_row<'a>(
    types: &[ScalarType],
    reader: &mut ScanReader<'a>,
    mut visit: impl FnMut(Option<Scalar<'a>>),
) -> Result<(), WireError> {
    let there = reader.take(types.len().div_ceil(8))?;
    for (column, of) in types.iter().enumerate() {
        let is_there = there[column / 8] >> (column % 8) & 1 == 1;
        visit(if is_there { Some(read_scalar(*of, reader)?) } else { None });
    }
    Ok(())
}

pub fn read_scalar<'a>(of: ScalarType, reader: &mut ScanReader<'a>) -> Result<Scalar<'a>, WireError> {
    Ok(match of {
        ScalarType::Bool => match reader.u8()? {
            byte @ (0 | 1) => Scalar::Bool(byte == 1),
            _ => return Err(WireError::Malformed),
        },
        ScalarType::Int => Scalar::Int(reader.u64()? as i64),
        ScalarType::Unsigned => Scalar::Unsigned(reader.u64()?),
        ScalarType::Float => Scalar::Float(f64::from_bits(reader.u64()?)),
        ScalarType::Timestamp => Scalar::Timestamp(reader.u64()? as i64),
        ScalarType::Text | ScalarType::Bytes => {
            let length = usize::try_from(read_varint(reader)?).map_err(|_| WireError::Malformed)?;
            if of == ScalarType::Text {
                Scalar::Text(reader.text(length)?)
            } else {
                Scalar::Bytes(reader.take(length)?)
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_reads_back() {
        let long = "x".repeat(200);
        let values = [
            Some(Scalar::Bool(true)),
            None,
            Some(Scalar::Int(-5)),
            Some(Scalar::Unsigned(u64::MAX)),
            Some(Scalar::Float(-1.5)),
            Some(Scalar::Timestamp(7)),
            Some(Scalar::Text(&long)),
            None,
            Some(Scalar::Bytes(b"")),
        ];
        let mut types = values.map(|value| value.map_or(ScalarType::Float, Scalar::scalar_type));
        let mut bytes = Vec::new();
        write_row(values.len(), values.into_iter(), &mut bytes);
        assert_eq!(bytes[..2], [0b0111_1101, 1]);
        let (mut reader, mut read) = (ScanReader::new(&bytes), Vec::new());
        read_row(&types, &mut reader, |value| read.push(value)).unwrap();
        assert_eq!(read, values);
        assert!(reader.is_empty());
        for length in 0..bytes.len() {
            assert!(read_row(&types, &mut ScanReader::new(&bytes[..length]), |_| ()).is_err(), "{length} bytes");
        }
        types[3] = ScalarType::Bool;
        assert_eq!(read_row(&types, &mut ScanReader::new(&bytes), |_| ()), Err(WireError::Malformed));
    }

    #[test]
    fn equal_values_have_equal_bytes() {
        let row = |value: f64| {
            let mut bytes = Vec::new();
            write_row(1, [Some(Scalar::Float(value))].into_iter(), &mut bytes);
            bytes
        };
        assert_eq!(row(0.0), row(-0.0));
        assert_eq!(row(f64::NAN), row(-f64::NAN));
        assert_ne!(row(1.0), row(2.0));
    }

    #[test]
    fn varints_are_of_64_bits() {
        for number in [0, 0x7f, 0x80, 0x3fff, 0x4000, u64::MAX] {
            let mut bytes = Vec::new();
            write_varint(number, &mut bytes);
            assert_eq!(read_varint(&mut ScanReader::new(&bytes)), Ok(number));
        }
        assert_eq!(read_varint(&mut ScanReader::new(&[0xff; 9])), Err(WireError::Short));
        assert_eq!(read_varint(&mut ScanReader::new(&[0xff; 11])), Err(WireError::Malformed));
        assert_eq!(
            read_varint(&mut ScanReader::new(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2])),
            Err(WireError::Malformed)
        );
    }
}
