//! The files of the page. They are in the binary, and name nothing that lies elsewhere.

use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, HeaderName, HeaderValue};

use crate::doors::http::{Answer, response};

/// The files by their paths, with their types.
const FILES: &[(&str, &str, &str)] = &[
    ("/", HTML, include_str!("page/index.html")),
    ("/console.css", CSS, include_str!("page/console.css")),
    ("/answers.js", SCRIPT, include_str!("page/answers.js")),
    ("/charts.js", SCRIPT, include_str!("page/charts.js")),
    ("/console.js", SCRIPT, include_str!("page/console.js")),
    ("/drive.js", SCRIPT, include_str!("page/drive.js")),
    ("/elements.js", SCRIPT, include_str!("page/elements.js")),
    ("/graph.js", SCRIPT, include_str!("page/graph.js")),
    ("/keyspaces.js", SCRIPT, include_str!("page/keyspaces.js")),
    ("/overview.js", SCRIPT, include_str!("page/overview.js")),
    ("/query.js", SCRIPT, include_str!("page/query.js")),
    ("/requests.js", SCRIPT, include_str!("page/requests.js")),
    ("/walk.js", SCRIPT, include_str!("page/walk.js")),
];

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Nothing but these files is loaded, asked or shown, and nobody shows them in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(&str, &str); 4] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
];

/// The file at a path, if there is one.
pub fn file(path: &str) -> Option<Answer> {
    let (_, content_type, text) = FILES.iter().find(|(of, ..)| *of == path)?;
    let mut answer = response(StatusCode::OK, content_type, *text);
    for (name, value) in HEADERS {
        answer.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    // A server of another version may answer at the next time.
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    #[test]
    fn every_file_of_the_page_is_served() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/doors/console/page");
        let name = |entry: fs::DirEntry| match entry.file_name().into_string().unwrap() {
            index if index == "index.html" => "/".into(),
            name => format!("/{name}"),
        };
        let there: BTreeSet<String> = fs::read_dir(folder).unwrap().map(|entry| name(entry.unwrap())).collect();
        assert_eq!(there, FILES.iter().map(|(path, ..)| String::from(*path)).collect());
        let page = file("/").unwrap();
        assert!(page.headers()["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
        assert!(file("/index.php").is_none());
    }
}
