//! Decides who may ask: the page itself, with a token. Everything else is refused before anything is read.
//!
//! A page of another origin can make a browser send requests here, and by a name that changes its address it can even read their answers.
//! 1. `Origin` is that of the page, so that no other page asks.
//! 2. Without users, `Host` is an address or `localhost`, so that no name leads here.
//! 3. A token, which other pages cannot read, comes with each request but the login.

use std::net::IpAddr;

use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::{Method, StatusCode};

use super::Refusal;

const JSON: &str = "application/json";
const BEARER: &str = "bearer ";

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// Refuses a request at a host that may be another's name.
pub fn check_host(headers: &HeaderMap, has_users: bool) -> Result<(), Refusal> {
    let host = text(headers, HOST).unwrap_or_default();
    if has_users || is_own(host) {
        return Ok(());
    }
    Err(Refusal::new(
        StatusCode::FORBIDDEN,
        "a server without users shows its console by its address alone, such as 127.0.0.1, or by localhost: other names may be anybody's",
    ))
}

/// Whether nobody else can have this host's name.
fn is_own(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    address.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost")
}

/// Refuses a request to the interface that is not the page's own.
pub fn check_request(method: &Method, headers: &HeaderMap, has_tls: bool) -> Result<(), Refusal> {
    if method != Method::POST {
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "use POST"));
    }
    let scheme = if has_tls { "https://" } else { "http://" };
    let host = text(headers, HOST).unwrap_or_default();
    let is_own = text(headers, ORIGIN)
        .and_then(|origin| origin.strip_prefix(scheme))
        .is_some_and(|origin| !host.is_empty() && origin.eq_ignore_ascii_case(host));
    if !is_own {
        return Err(Refusal::new(StatusCode::FORBIDDEN, "the console answers its own page alone: open / in a browser"));
    }
    let content_type = text(headers, CONTENT_TYPE).and_then(|value| value.split(';').next()).unwrap_or_default();
    match content_type.trim().eq_ignore_ascii_case(JSON) {
        true => Ok(()),
        false => Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "send JSON, as application/json")),
    }
}

/// The token that comes with a request.
pub fn token(headers: &HeaderMap) -> Option<&str> {
    let value = text(headers, AUTHORIZATION)?;
    let (scheme, token) = value.split_at_checked(BEARER.len())?;
    scheme.eq_ignore_ascii_case(BEARER).then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn headers(all: &[(HeaderName, &'static str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn without_users_only_addresses_are_served() {
        for (host, is_served) in [
            ("127.0.0.1:9180", true),
            ("[::1]:9180", true),
            ("localhost", true),
            ("LOCALHOST:1", true),
            ("10.0.0.7", true),
            ("evil.example:9180", false),
            ("127.0.0.1.evil.example", false),
            ("localhost.evil.example:80", false),
            ("", false),
        ] {
            assert_eq!(check_host(&headers(&[(HOST, host)]), false).is_ok(), is_served, "{host}");
            assert!(check_host(&headers(&[(HOST, host)]), true).is_ok());
        }
    }

    #[test]
    fn only_the_page_itself_asks() {
        let of = |origin, content_type| {
            let headers = headers(&[(HOST, "127.0.0.1:9180"), (ORIGIN, origin), (CONTENT_TYPE, content_type)]);
            check_request(&Method::POST, &headers, false).map_err(|refusal| refusal.status)
        };
        assert_eq!(of("http://127.0.0.1:9180", "application/json; charset=utf-8"), Ok(()));
        assert_eq!(of("http://127.0.0.1:9180", "text/plain"), Err(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        for origin in ["https://127.0.0.1:9180", "http://127.0.0.1", "http://evil.example", "null", ""] {
            assert_eq!(of(origin, "application/json"), Err(StatusCode::FORBIDDEN), "{origin}");
        }
        let none = headers(&[(HOST, "127.0.0.1:9180")]);
        assert_eq!(check_request(&Method::POST, &none, false).unwrap_err().status, StatusCode::FORBIDDEN);
        assert_eq!(check_request(&Method::GET, &none, false).unwrap_err().status, StatusCode::METHOD_NOT_ALLOWED);
        let tls = headers(&[(HOST, "a.example"), (ORIGIN, "https://a.example"), (CONTENT_TYPE, "application/json")]);
        assert!(check_request(&Method::POST, &tls, true).is_ok());
    }

    #[test]
    fn a_token_stands_behind_bearer() {
        let of = |value| token(&headers(&[(AUTHORIZATION, value)])).map(str::to_owned);
        assert_eq!(of("Bearer abc"), Some("abc".into()));
        assert_eq!(of("bearer abc "), Some("abc".into()));
        assert_eq!((of("Basic abc"), of("Bearer")), (None, None));
    }
}
