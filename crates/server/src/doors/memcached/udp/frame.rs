//! The frame of a datagram, which is memcached's: a header and a payload. A message of several datagrams has the same request
//! id in all of them. Pure.

/// All integers are big endian:
///
/// ```text
///  0            2        4       6          8
///  request id | number | count | reserved | payload
/// ```
/// `number` counts the datagrams of a message from 0, `count` is how many there are.
pub const HEADER_BYTES: usize = 8;

/// Why a datagram is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadFrame {
    /// Shorter than a header and one byte, or numbers that make no sense.
    Malformed,
    /// A part of a request that spans several datagrams.
    Fragment,
}

/// The request id and the payload of a request, which is one datagram.
pub fn request(datagram: &[u8]) -> Result<(u16, &[u8]), BadFrame> {
    let Some((header, payload)) = datagram.split_first_chunk::<HEADER_BYTES>() else {
        return Err(BadFrame::Malformed);
    };
    let [id_high, id_low, number_high, number_low, count_high, count_low, ..] = *header;
    let (number, count) = (u16::from_be_bytes([number_high, number_low]), u16::from_be_bytes([count_high, count_low]));
    match (number, count) {
        (0, 1) if !payload.is_empty() => Ok((u16::from_be_bytes([id_high, id_low]), payload)),
        (number, 2..) if number < count => Err(BadFrame::Fragment),
        _ => Err(BadFrame::Malformed),
    }
}

/// How many datagrams a reply takes, each with a header and at most `payload_bytes` behind it; `None` if there is no number for
/// the last of them.
pub fn count(reply_bytes: usize, payload_bytes: usize) -> Option<u16> {
    u16::try_from(reply_bytes.div_ceil(payload_bytes)).ok()
}

/// The header of datagram `number` of a reply.
pub fn reply(request_id: u16, number: u16, count: u16) -> [u8; HEADER_BYTES] {
    let ([a, b], [c, d], [e, f]) = (request_id.to_be_bytes(), number.to_be_bytes(), count.to_be_bytes());
    [a, b, c, d, e, f, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(number: u16, count: u16, payload: &[u8]) -> Vec<u8> {
        [&reply(0x1234, number, count), payload].concat()
    }

    #[test]
    fn a_request_is_one_whole_datagram() {
        assert_eq!(request(&framed(0, 1, b"get a\r\n")), Ok((0x1234, &b"get a\r\n"[..])));
        for (number, count) in [(0, 2), (1, 2), (65534, 65535)] {
            assert_eq!(request(&framed(number, count, b"get a\r\n")), Err(BadFrame::Fragment), "{number} of {count}");
        }
        for (number, count) in [(0, 0), (1, 0), (1, 1), (2, 2), (65535, 1)] {
            assert_eq!(request(&framed(number, count, b"get a\r\n")), Err(BadFrame::Malformed), "{number} of {count}");
        }
        for length in 0..=HEADER_BYTES {
            assert_eq!(request(&framed(0, 1, b"")[..length]), Err(BadFrame::Malformed));
        }
        // The last two bytes are reserved and not looked at.
        let mut reserved = framed(0, 1, b"x");
        reserved[7] = 9;
        assert_eq!(request(&reserved), Ok((0x1234, &b"x"[..])));
    }

    #[test]
    fn a_reply_is_cut_where_a_datagram_is_full() {
        assert_eq!(
            [1, 1392, 1393, 2784, 2785].map(|bytes| count(bytes, 1392)),
            [Some(1), Some(1), Some(2), Some(2), Some(3)]
        );
        assert_eq!([65535, 65536].map(|bytes| count(bytes, 1)), [Some(65535), None]);
    }
}
