//! Follows a path through a document of JSON, and takes the escapes out of its strings.
//!
//! 1. Each byte is read once, nothing recurses, and nesting deeper than [`JSON_DEPTH_MAX`] is refused.
//! 2. All bytes up to the value's end are checked. Those behind it are checked only if there is no value: then the whole document is JSON.
//! 3. Of members with one name the first counts.
//! 4. A step into what has no such member is no error: there is no value.

use super::json_path::{JsonPath, JsonStep};

/// Objects and arrays that may lie in each other.
pub const JSON_DEPTH_MAX: usize = 64;

/// Why a document was not followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JsonError {
    /// It is not JSON, or ends too early.
    Malformed,
    /// It is nested deeper than [`JSON_DEPTH_MAX`].
    Deep,
}

/// A value as it stands in the document.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JsonToken<'a> {
    Null,
    Bool(bool),
    /// In JSON's form of a number.
    Number(&'a str),
    /// Without its quotes; escapes are still in it.
    String(&'a [u8]),
    /// An object or array.
    Nested,
}

impl JsonPath {
    /// The value at the path; `None` if there is none.
    pub fn find<'a>(&self, document: &'a [u8]) -> Result<Option<JsonToken<'a>>, JsonError> {
        let mut scanner = JsonScanner { bytes: document, at: 0 };
        for (depth, step) in self.steps.iter().enumerate() {
            let is_there = match step {
                JsonStep::Member(name) => scanner.enter_member(name.as_bytes(), depth)?,
                JsonStep::Element(place) => scanner.enter_element(*place, depth)?,
            };
            if !is_there {
                return scanner.pass_rest(&self.steps[..depth]).map(|()| None);
            }
        }
        scanner.token(self.steps.len()).map(Some)
    }
}

/// Whether all of a document is JSON. Its strings may be of any bytes.
pub fn check_document(document: &[u8]) -> Result<(), JsonError> {
    let mut scanner = JsonScanner { bytes: document, at: 0 };
    scanner.token(0)?;
    scanner.pass_rest(&[])
}

struct JsonScanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> JsonScanner<'a> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// The next byte that is no space.
    fn next_solid(&mut self) -> Result<u8, JsonError> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
        self.peek().ok_or(JsonError::Malformed)
    }

    fn expect(&mut self, byte: u8) -> Result<(), JsonError> {
        if self.next_solid()? != byte {
            return Err(JsonError::Malformed);
        }
        self.at += 1;
        Ok(())
    }

    /// Stops before the value of a member of the object that begins here; where there is none, behind all of what begins here.
    fn enter_member(&mut self, name: &[u8], depth: usize) -> Result<bool, JsonError> {
        if self.next_solid()? != b'{' {
            return self.token(depth).map(|_| false);
        }
        self.at += 1;
        if self.next_solid()? == b'}' {
            self.at += 1;
            return Ok(false);
        }
        loop {
            self.next_solid()?;
            let is_named = is_name(self.string()?, name);
            self.expect(b':')?;
            if is_named {
                return Ok(true);
            }
            if !self.skip_to_next(b'}', depth)? {
                return Ok(false);
            }
        }
    }

    /// As [`JsonScanner::enter_member`].
    fn enter_element(&mut self, place: u32, depth: usize) -> Result<bool, JsonError> {
        if self.next_solid()? != b'[' {
            return self.token(depth).map(|_| false);
        }
        self.at += 1;
        if self.next_solid()? == b']' {
            self.at += 1;
            return Ok(false);
        }
        for _ in 0..place {
            if !self.skip_to_next(b']', depth)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Passes a value and the comma behind it; false where `end` comes instead.
    fn skip_to_next(&mut self, end: u8, depth: usize) -> Result<bool, JsonError> {
        self.token(depth + 1)?;
        self.comma(end)
    }

    /// Passes the rest of the document, from the end of a value that lies within these steps.
    fn pass_rest(&mut self, steps: &[JsonStep]) -> Result<(), JsonError> {
        for (depth, step) in steps.iter().enumerate().rev() {
            let is_object = matches!(step, JsonStep::Member(_));
            while self.comma(if is_object { b'}' } else { b']' })? {
                if is_object {
                    self.next_solid()?;
                    self.member_name()?;
                }
                self.token(depth + 1)?;
            }
        }
        // Nothing but spaces.
        match self.next_solid() {
            Ok(_) => Err(JsonError::Malformed),
            Err(_) => Ok(()),
        }
    }

    /// Passes the comma behind a value; false where `end` comes instead.
    fn comma(&mut self, end: u8) -> Result<bool, JsonError> {
        let next = self.next_solid()?;
        self.at += 1;
        match next {
            b',' => Ok(true),
            next if next == end => Ok(false),
            _ => Err(JsonError::Malformed),
        }
    }

    /// Passes a value that lies `depth` deep.
    fn token(&mut self, depth: usize) -> Result<JsonToken<'a>, JsonError> {
        match self.next_solid()? {
            b'{' | b'[' => self.skip_nested(depth).map(|()| JsonToken::Nested),
            _ => self.plain(),
        }
    }

    fn plain(&mut self) -> Result<JsonToken<'a>, JsonError> {
        match self.next_solid()? {
            b'"' => self.string().map(JsonToken::String),
            b't' => self.word(b"true").map(|()| JsonToken::Bool(true)),
            b'f' => self.word(b"false").map(|()| JsonToken::Bool(false)),
            b'n' => self.word(b"null").map(|()| JsonToken::Null),
            _ => self.number().map(JsonToken::Number),
        }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), JsonError> {
        if !self.bytes[self.at..].starts_with(word) {
            return Err(JsonError::Malformed);
        }
        self.at += word.len();
        self.end_of_token()
    }

    /// A number or a word ends here if what follows may stand behind a value. `12ab` is no 12.
    fn end_of_token(&self) -> Result<(), JsonError> {
        match self.peek() {
            None | Some(b' ' | b'\t' | b'\n' | b'\r' | b',' | b'}' | b']') => Ok(()),
            Some(_) => Err(JsonError::Malformed),
        }
    }

    /// Passes a string; what is between its quotes.
    fn string(&mut self) -> Result<&'a [u8], JsonError> {
        self.expect(b'"')?;
        let from = self.at;
        loop {
            match self.peek().ok_or(JsonError::Malformed)? {
                b'"' => break,
                b'\\' => self.pass_escape()?,
                0..0x20 => return Err(JsonError::Malformed),
                _ => self.at += 1,
            }
        }
        let content = &self.bytes[from..self.at];
        self.at += 1;
        Ok(content)
    }

    /// Half of a character above 16 bits passes: only whoever reads the string needs both.
    fn pass_escape(&mut self) -> Result<(), JsonError> {
        let length = match self.bytes.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 2,
            Some(b'u') => 6,
            _ => return Err(JsonError::Malformed),
        };
        let digits = self.bytes.get(self.at + 2..self.at + length).ok_or(JsonError::Malformed)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(JsonError::Malformed);
        }
        self.at += length;
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let from = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == from { Err(JsonError::Malformed) } else { Ok(()) }
    }

    fn number(&mut self) -> Result<&'a str, JsonError> {
        let from = self.at;
        self.at += usize::from(self.peek() == Some(b'-'));
        if self.peek() == Some(b'0') {
            self.at += 1
        } else {
            self.digits()?
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            self.digits()?;
        }
        self.end_of_token()?;
        std::str::from_utf8(&self.bytes[from..self.at]).map_err(|_| JsonError::Malformed)
    }

    /// Passes an object or array, whatever is in it, `depth` deep.
    fn skip_nested(&mut self, depth: usize) -> Result<(), JsonError> {
        // A bit for each that is open: one for objects.
        let (mut objects, mut open) = (0u64, 0usize);
        loop {
            // Before a value.
            match self.next_solid()? {
                bracket @ (b'{' | b'[') => {
                    if depth + open >= JSON_DEPTH_MAX {
                        return Err(JsonError::Deep);
                    }
                    (objects, open) = (objects << 1 | u64::from(bracket == b'{'), open + 1);
                    self.at += 1;
                    let is_object = bracket == b'{';
                    if self.next_solid()? != if is_object { b'}' } else { b']' } {
                        if is_object {
                            self.member_name()?;
                        }
                        continue;
                    }
                    self.at += 1;
                    (objects, open) = (objects >> 1, open - 1);
                }
                _ => {
                    self.plain()?;
                }
            }
            // Behind a value.
            loop {
                if open == 0 {
                    return Ok(());
                }
                let is_object = objects & 1 == 1;
                let next = self.next_solid()?;
                self.at += 1;
                if next == b',' {
                    if is_object {
                        self.next_solid()?;
                        self.member_name()?;
                    }
                    break;
                }
                if next != if is_object { b'}' } else { b']' } {
                    return Err(JsonError::Malformed);
                }
                (objects, open) = (objects >> 1, open - 1);
            }
        }
    }

    fn member_name(&mut self) -> Result<(), JsonError> {
        self.string()?;
        self.expect(b':')
    }
}

/// Whether a string with its escapes is this name.
fn is_name(content: &[u8], name: &[u8]) -> bool {
    if !content.contains(&b'\\') {
        return content == name;
    }
    let mut rest = name;
    let whole = unescape(content, |piece| match rest.strip_prefix(piece) {
        Some(after) => {
            rest = after;
            true
        }
        None => false,
    });
    whole.is_ok_and(|whole| whole) && rest.is_empty()
}

/// Hands a string's bytes to `take`, piece by piece and without escapes, until it returns false; whether it never did.
pub fn unescape(content: &[u8], mut take: impl FnMut(&[u8]) -> bool) -> Result<bool, JsonError> {
    let mut rest = content;
    while let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
        if !take(&rest[..at]) {
            return Ok(false);
        }
        let (character, taken) = escaped(&rest[at + 1..])?;
        if !take(character.encode_utf8(&mut [0; 4]).as_bytes()) {
            return Ok(false);
        }
        rest = &rest[at + 1 + taken..];
    }
    Ok(take(rest))
}

/// The character of an escape, and how many bytes behind the backslash it takes.
fn escaped(bytes: &[u8]) -> Result<(char, usize), JsonError> {
    let plain = match bytes.first().ok_or(JsonError::Malformed)? {
        byte @ (b'"' | b'\\' | b'/') => char::from(*byte),
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return escaped_unit(&bytes[1..]),
        _ => return Err(JsonError::Malformed),
    };
    Ok((plain, 1))
}

fn escaped_unit(bytes: &[u8]) -> Result<(char, usize), JsonError> {
    let unit = |at: usize| -> Result<u32, JsonError> {
        let digits = bytes.get(at..at + 4).ok_or(JsonError::Malformed)?;
        digits.iter().try_fold(0, |unit, digit| {
            let digit = char::from(*digit).to_digit(16).ok_or(JsonError::Malformed)?;
            Ok(unit << 4 | digit)
        })
    };
    let first = unit(0)?;
    if !(0xd800..0xdc00).contains(&first) {
        return char::from_u32(first).map(|character| (character, 5)).ok_or(JsonError::Malformed);
    }
    let second = if bytes.get(4..6) == Some(br"\u") { unit(6)? } else { 0 };
    if !(0xdc00..0xe000).contains(&second) {
        return Err(JsonError::Malformed);
    }
    let character = char::from_u32(0x10000 + ((first - 0xd800) << 10 | (second - 0xdc00)));
    character.map(|character| (character, 11)).ok_or(JsonError::Malformed)
}

#[cfg(test)]
#[path = "json_scanner_tests.rs"]
mod tests;
