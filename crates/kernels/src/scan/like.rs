//! Patterns of `like`: `%` stands for any characters, `_` for one, and `\` takes the character behind it as it is.
//!
//! ```text
//! a_b%cd%_e    front: a _ b      middles: cd      back: _ e
//! ```
//! 1. A character is one of UTF-8 in a string, and one byte in bytes.
//! 2. Middles are found from the left, each behind the one before. One without `_` is found in time in proportion to the value; one
//!    with `_` takes at most its own length times as long, and [`LIKE_BYTES_MAX`] bounds that.
//! 3. Every pattern matches or does not: a `\` at the end stands for itself.

use memchr::memmem::Finder;

/// Bytes of a pattern.
pub const LIKE_BYTES_MAX: usize = 1024;

pub struct LikePattern {
    /// Before the first `%`.
    front: Vec<LikeStep>,
    /// `None` where the pattern has no `%`.
    behind: Option<BehindFront>,
    is_text: bool,
}

struct BehindFront {
    middles: Vec<Middle>,
    /// They stand behind the last `%`.
    back: Vec<LikeStep>,
}

enum LikeStep {
    Literal(Box<[u8]>),
    /// This number of characters, each of them any.
    Any(usize),
}

/// Stands between two `%`: characters that are passed over, then bytes to be found with what follows them.
struct Middle {
    skipped: usize,
    /// `None` where nothing is to be found.
    found: Option<(Finder<'static>, Vec<LikeStep>)>,
}

impl LikePattern {
    /// `is_text`: of strings, else of bytes.
    pub fn new(pattern: &[u8], is_text: bool) -> LikePattern {
        let mut parts = parse(pattern).into_iter();
        let front = parts.next().unwrap_or_default();
        let mut middles: Vec<Vec<LikeStep>> = parts.collect();
        let behind =
            middles.pop().map(|back| BehindFront { middles: middles.into_iter().map(Middle::new).collect(), back });
        LikePattern { front, behind, is_text }
    }

    pub fn matches(&self, value: &[u8]) -> bool {
        let Some(rest) = strip_front(&self.front, value, self.is_text) else { return false };
        let Some(behind) = &self.behind else { return rest.is_empty() };
        let Some(mut rest) = strip_back(&behind.back, rest, self.is_text) else { return false };
        for middle in &behind.middles {
            match middle.find(rest, self.is_text) {
                Some(after) => rest = after,
                None => return false,
            }
        }
        true
    }
}

impl Middle {
    fn new(steps: Vec<LikeStep>) -> Middle {
        let mut steps = steps.into_iter().peekable();
        let mut skipped = 0;
        while let Some(LikeStep::Any(characters)) = steps.peek() {
            skipped += characters;
            steps.next();
        }
        let found = match steps.next() {
            Some(LikeStep::Literal(bytes)) => Some((Finder::new(&bytes).into_owned(), steps.collect())),
            _ => None,
        };
        Middle { skipped, found }
    }

    /// Finds its first occurrence, and returns what follows.
    fn find<'a>(&self, value: &'a [u8], is_text: bool) -> Option<&'a [u8]> {
        let mut rest = skip_front(value, self.skipped, is_text)?;
        let Some((finder, behind)) = &self.found else { return Some(rest) };
        loop {
            let at = finder.find(rest)?;
            if let Some(after) = strip_front(behind, &rest[at + finder.needle().len()..], is_text) {
                return Some(after);
            }
            rest = &rest[at + 1..];
        }
    }
}

/// Cuts a pattern at each `%`: a pattern with two of them has three parts.
fn parse(pattern: &[u8]) -> Vec<Vec<LikeStep>> {
    let (mut parts, mut steps, mut literal) = (Vec::new(), Vec::new(), Vec::new());
    let end_literal = |literal: &mut Vec<u8>, steps: &mut Vec<LikeStep>| {
        if !literal.is_empty() {
            steps.push(LikeStep::Literal(std::mem::take(literal).into()));
        }
    };
    let mut bytes = pattern.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => literal.push(bytes.next().unwrap_or(b'\\')),
            b'_' => {
                end_literal(&mut literal, &mut steps);
                match steps.last_mut() {
                    Some(LikeStep::Any(characters)) => *characters += 1,
                    _ => steps.push(LikeStep::Any(1)),
                }
            }
            b'%' => {
                end_literal(&mut literal, &mut steps);
                parts.push(std::mem::take(&mut steps));
            }
            byte => literal.push(byte),
        }
    }
    end_literal(&mut literal, &mut steps);
    parts.push(steps);
    parts
}

fn strip_front<'a>(steps: &[LikeStep], value: &'a [u8], is_text: bool) -> Option<&'a [u8]> {
    steps.iter().try_fold(value, |rest, step| match step {
        LikeStep::Literal(bytes) => rest.strip_prefix(&bytes[..]),
        LikeStep::Any(characters) => skip_front(rest, *characters, is_text),
    })
}

fn strip_back<'a>(steps: &[LikeStep], value: &'a [u8], is_text: bool) -> Option<&'a [u8]> {
    steps.iter().rev().try_fold(value, |rest, step| match step {
        LikeStep::Literal(bytes) => rest.strip_suffix(&bytes[..]),
        LikeStep::Any(characters) => skip_back(rest, *characters, is_text),
    })
}

/// All but the first characters; `None` if there are fewer.
fn skip_front(value: &[u8], characters: usize, is_text: bool) -> Option<&[u8]> {
    if !is_text {
        return value.get(characters..);
    }
    (0..characters).try_fold(value, |rest, _| {
        let (_, behind) = rest.split_first()?;
        Some(&behind[behind.iter().take_while(|byte| is_continuation(**byte)).count()..])
    })
}

/// All but the last characters; `None` if there are fewer.
fn skip_back(value: &[u8], characters: usize, is_text: bool) -> Option<&[u8]> {
    if !is_text {
        return value.get(..value.len().checked_sub(characters)?);
    }
    (0..characters).try_fold(value, |rest, _| rest.get(..rest.iter().rposition(|byte| !is_continuation(*byte))?))
}

/// Whether a byte of UTF-8 goes on with a character that began before.
fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, value: &str) -> bool {
        LikePattern::new(pattern.as_bytes(), true).matches(value.as_bytes())
    }

    #[test]
    fn patterns_match_as_in_sql() {
        for (pattern, matching, others) in [
            ("", &[""][..], &["a"][..]),
            ("%", &["", "a", "ä%"], &[]),
            ("%%", &["", "a"], &[]),
            ("a%", &["a", "ab"], &["", "ba"]),
            ("%a", &["a", "ba", "aa"], &["", "ab"]),
            ("%ab%", &["ab", "xab", "abx", "aab"], &["", "a", "ba", "a b"]),
            ("a%a", &["aa", "aba"], &["a", "ab"]),
            ("%a%a%", &["aa", "xaxax"], &["a", "xa"]),
            ("_", &["a", "ä", "😀"], &["", "ab", "äb"]),
            ("a_c", &["abc", "aäc"], &["ac", "abbc"]),
            ("%_", &["a", "ä"], &[""]),
            ("_%_", &["ab", "äö", "abc"], &["", "a", "ä"]),
            ("%a_b%", &["aab", "aaxb", "aäb", "a_b_"], &["ab", "a", "axxb"]),
            ("%_a_%", &["xay", "xxay", "aaa"], &["ay", "xa", "a"]),
            ("%ab_%", &["abc", "abab"], &["ab", "xab"]),
            (r"100\%", &["100%"], &["100", "1000"]),
            (r"%\_%", &["_", "a_b"], &["", "ab"]),
            (r"a\\%", &[r"a\", r"a\b"], &["a", "ab"]),
            (r"a\bc", &["abc"], &[r"a\bc"]),
            (r"a\", &[r"a\"], &["a"]),
        ] {
            for value in matching {
                assert!(matches(pattern, value), "{value:?} like {pattern:?}");
            }
            for value in others {
                assert!(!matches(pattern, value), "{value:?} not like {pattern:?}");
            }
        }
    }

    #[test]
    fn a_character_of_bytes_is_a_byte() {
        let of_bytes = |pattern: &[u8], value: &[u8]| LikePattern::new(pattern, false).matches(value);
        assert!(of_bytes(b"_%\xff_", b"\x80\xff\x80") && of_bytes("__".as_bytes(), "ä".as_bytes()));
        assert!(!of_bytes(b"_", "ä".as_bytes()) && !of_bytes(b"%\xff_", b"\xff"));
    }

    /// One character of the pattern at a time, with every end of each `%`.
    fn model(pattern: &[char], value: &[char]) -> bool {
        match (pattern, value) {
            ([], value) => value.is_empty(),
            (['%', rest @ ..], value) => (0..=value.len()).any(|at| model(rest, &value[at..])),
            (['_', rest @ ..], [_, value @ ..]) => model(rest, value),
            (['\\', wanted, rest @ ..] | [wanted, rest @ ..], [first, value @ ..]) => {
                wanted == first && model(rest, value)
            }
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn patterns_match_as_the_model_does(pattern in "[ab%_ä\\\\]{0,8}", value in "[ab%_ä\\\\]{0,10}") {
            let characters = |text: &str| text.chars().collect::<Vec<char>>();
            let expected = model(&characters(&pattern), &characters(&value));
            prop_assert_eq!(matches(&pattern, &value), expected, "{:?} like {:?}", value, pattern);
        }
    }
}
