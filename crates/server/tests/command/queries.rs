//! Tests of queries from outside: a database of papers is generated, loaded and queried, at the drive and on the host.

use std::process::Output;

use crate::outside::{Scratch, tapetum};

fn new_scratch(name: &str) -> Scratch {
    Scratch::new(&format!("queries-{name}"), |command, words, data| {
        command.args(["--memory", "32MiB", "--data"]).arg(data);
        if words.starts_with(&["keyspace", "create"]) {
            command.args(["--capacity", "64MiB"]);
        }
    })
}

fn generated(table: &str) -> Vec<u8> {
    let words = ["generate", "papers", "--scale", "0.001", "--seed", "3", "--table", table];
    let output = tapetum(&words).output().unwrap();
    assert!(output.status.success());
    output.stdout
}

#[test]
fn a_query_and_a_format_that_say_too_little_are_asked_for_the_rest() {
    let scratch = new_scratch("little");
    for (words, told) in [
        (
            &["scan", "--keyspace", "default", "--group-by", "year"][..],
            "with --select, such as --select \"year, count(*)\"",
        ),
        (
            &["scan", "--keyspace", "default", "--fields", "key: k string", "--having", "k > 1"],
            "--having chooses among groups",
        ),
        (
            &["scan", "--keyspace", "default", "--fields", " "],
            "--fields is empty: say what keys and values are made of",
        ),
        (&["keyspace", "format", "default", ""], "FIELDS is empty: say what keys and values are made of"),
        (&["keyspace", "format", "default", ""], "--remove forgets the format"),
    ] {
        let error = scratch.fails(words);
        assert!(error.contains(told), "{words:?}: {error}");
    }
}

#[test]
fn papers_are_found_by_venue_and_year() {
    let scratch = new_scratch("papers");
    scratch.asks(&["keyspace", "create", "papers"]);
    let lines = generated("papers");
    scratch.asks_of(&["load", "--keyspace", "papers"], &lines);
    // Computed from the lines themselves: year and venue are at the front of a value.
    let text = String::from_utf8_lossy(&lines);
    let vldb = text.lines().filter(|line| line.contains("\\x04VLDB")).count();
    assert!(vldb > 50, "{vldb} papers");
    let asked = ["scan", "--keyspace", "papers", "--fields", "papers"];
    let count = ["--where", "venue = 'VLDB'", "--select", "count(*) as papers", "--format", "csv"];
    for side in ["drive", "host"] {
        let words = [&asked[..], &count, &["--run", side, "--explain"]].concat();
        let (rows, told) = scratch.asks(&words);
        assert_eq!(rows, format!("papers\n{vldb}\n"), "{side}: {told}");
        assert!(told.contains(&format!("{vldb} of 3800 records kept")), "{told}");
    }
    // Record by record: one more wake-up for each row from the drive.
    let ids = ["--where", "venue = 'VLDB'", "--select", "id", "--format", "csv", "--explain", "--transfer"];
    let transfer = |how| {
        let (rows, told) = scratch.asks(&[&asked[..], &ids, &[how]].concat());
        let mut rows: Vec<String> = rows.lines().map(str::to_owned).collect();
        rows.sort();
        (rows, told)
    };
    let ((in_bulk, of_bulk), (by_record, of_records)) = (transfer("bulk"), transfer("records"));
    assert_eq!(in_bulk, by_record);
    assert!(of_bulk.contains("rows in bulk") && of_records.contains("row by row"), "{of_bulk}{of_records}");
    let from_host = scratch.fails(&[&asked[..], &ids, &["records", "--run", "host"]].concat());
    assert!(from_host.contains("leave out --run host"), "{from_host}");
    let (rows, told) = scratch.asks(&[&asked[..], &count, &["--units", "2", "--explain"]].concat());
    assert!(rows == format!("papers\n{vldb}\n") && told.contains("by 2 units of the drive"), "{rows}{told}");
    assert!(scratch.fails(&[&asked[..], &count, &["--units", "2", "--run", "host"]].concat()).contains("--units"));
    let title = ["--where", "id = 17", "--select", "id, year, title like 'A%' as a", "--format", "jsonl"];
    let (row, _) = scratch.asks(&[&asked[..], &title].concat());
    assert!(row.starts_with("{\"id\":17,\"year\":19") && row.ends_with("}\n") && row.lines().count() == 1, "{row}");
    let years =
        ["--select", "year, count(*) as papers", "--group-by", "year", "--order-by", "papers desc", "--limit", "2"];
    let (table, _) = scratch.asks(&[&asked[..], &years].concat());
    let table: Vec<&str> = table.lines().collect();
    assert_eq!((table.len(), table[0], table[1]), (4, "year  papers", "----  ------"));
    assert!(table[2].starts_with("20"), "{table:?}");
    let last = ["--select", "id", "--order-by", "id desc", "--limit", "3", "--format", "csv"];
    assert_eq!(scratch.asks(&[&asked[..], &last].concat()).0, "id\n3799\n3798\n3797\n");
    // A stream of Arrow: messages behind markers, and the end marker.
    let arrow = scratch.run(&[&asked[..], &["--select", "id, title", "--format", "arrow"]].concat());
    assert!(arrow.status.success() && arrow.stdout.len() > 3800 * 30, "{} bytes", arrow.stdout.len());
    assert!(arrow.stdout.starts_with(&[0xff; 4]) && arrow.stdout.ends_with(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]));
}

#[test]
fn what_is_wrong_with_a_query_is_told_at_its_word() {
    let scratch = new_scratch("wrong");
    scratch.asks(&["keyspace", "create", "papers"]);
    scratch.asks_of(&["load", "--keyspace", "papers"], b"k\tx\n");
    let asked = ["scan", "--keyspace", "papers", "--fields"];
    for (words, expected) in [
        (&["papers", "--where", "yaer = 2000"][..], "where, column 1, yaer: the format has no such field; year is one"),
        (&["key: id u12"], "--fields, column 9, \"u12\": no such type"),
        (
            &["papers"],
            "the record of the key \"k\" does not fit the format, at the field id: the record ends before the field does",
        ),
        (&["papers", "--format", "tsv"], "a query's rows are printed as table, csv, jsonl or arrow"),
        (&["papers", "--select", "id", "--order-by", "id"], "order by, column 1, id: ordered rows need a limit"),
    ] {
        let told = scratch.fails(&[&asked[..], words].concat());
        assert!(told.contains(expected), "{words:?}: {told}");
    }
    let skipped = [&asked[..], &["papers", "--on-error", "skip", "--format", "csv"]].concat();
    let (rows, told) = scratch.asks(&skipped);
    assert_eq!(rows, "id,year,venue,title\n");
    assert!(told.contains("1 records do not fit and were left out"), "{told}");
}

#[test]
fn a_keyspace_keeps_its_format() {
    let scratch = new_scratch("formats");
    scratch.asks(&["keyspace", "create", "papers"]);
    scratch.asks_of(&["load", "--keyspace", "papers"], &generated("papers"));
    let asked = ["scan", "papers", "--where", "id = 17", "--select", "id", "--format", "csv"];
    assert!(scratch.fails(&asked).contains("the format of the records of papers is not known"));
    let format = "key: id u32be; value: year u16le, venue string8, title string";
    let set = scratch.asks(&["keyspace", "format", "papers", "papers", "--check"]).0;
    assert_eq!(set, format!("records of papers are {format}\n"));
    assert_eq!(scratch.asks(&asked).0, "id\n17\n");
    let (all, _) = scratch.asks(&["scan", "papers", "--limit", "3", "--format", "csv"]);
    assert!(all.starts_with("id,year,venue,title\n") && all.lines().count() == 4, "{all}");
    assert_eq!(scratch.asks(&["keyspace", "format", "papers", "--check"]).0, format!("{format}\n"));
    let (listed, _) = scratch.asks(&["keyspace", "list"]);
    assert_eq!(listed, format!("default\thashed\t0\npapers\thashed\t3800\t{format}\n"));
    assert!(scratch.asks(&["keyspace", "list", "--json"]).0.contains(&format!("\"format\": \"{format}\"")));
    let (shown, _) = scratch.asks(&["keyspace", "show", "papers"]);
    assert_eq!(shown, format!("name    papers\nkind    hashed\nitems   3800\nformat  {format}\n"));
    // A format that does not fit changes nothing.
    let told = scratch.fails(&["keyspace", "format", "papers", "key: id u32be; value: year u16le", "--check"]);
    assert!(told.contains("3800 of 3800 items do not fit") && told.contains("goes on behind its last field"), "{told}");
    assert!(scratch.fails(&["keyspace", "format", "papers", "key: id u12"]).contains("no such type"));
    assert!(scratch.fails(&["keyspace", "format", "none", "papers"]).contains("no keyspace"));
    assert_eq!(scratch.asks(&asked).0, "id\n17\n");
    scratch.asks(&["keyspace", "format", "papers", "--remove"]);
    assert!(scratch.fails(&asked).contains("keyspace format papers FIELDS"));
    assert!(scratch.asks(&["keyspace", "show", "papers"]).0.contains("format  none"));
}

#[test]
fn sql_that_everybody_expects_is_taken() {
    let scratch = new_scratch("sql");
    scratch.asks(&["keyspace", "create", "papers"]);
    let lines = generated("papers");
    scratch.asks_of(&["load", "--keyspace", "papers"], &lines);
    let text = String::from_utf8_lossy(&lines);
    let asked = ["scan", "papers", "--fields", "papers", "--format", "csv"];
    let of_storage = text.lines().filter(|line| line.contains(" storage ")).count();
    assert!(of_storage > 50, "{of_storage} titles");
    let conditions = [("title like '% storage %'", of_storage), ("title not like '% storage %'", 3800 - of_storage)];
    for (condition, papers) in conditions {
        for side in ["drive", "host"] {
            let words = [&asked[..], &["--where", condition, "--select", "count(*)", "--run", side]].concat();
            assert_eq!(scratch.asks(&words).0, format!("count(*)\n{papers}\n"), "{condition} on the {side}");
        }
    }
    let rows = |words: &[&str]| {
        let (rows, told) = scratch.asks(&[&asked[..], words, &["--explain"]].concat());
        (rows.lines().skip(1).map(str::to_owned).collect::<Vec<String>>(), told)
    };
    let by_year = ["--select", "year - year % 10 as decade, count(*) as papers", "--group-by", "decade"];
    let (decades, told) = rows(&by_year);
    assert!(decades.len() > 3 && told.contains("at the drive by this thread"), "{decades:?}{told}");
    assert!(!told.contains("on the host"), "{told}");
    let (some, told) = rows(&[&by_year[..], &["--having", "papers > 300 and decade < 2020"]].concat());
    let is_kept = |row: &&String| {
        let (decade, papers) = row.split_once(',').unwrap();
        papers.parse::<u32>().unwrap() > 300 && decade.parse::<u32>().unwrap() < 2020
    };
    let kept: std::collections::BTreeSet<&String> = decades.iter().filter(is_kept).collect();
    assert!(!kept.is_empty() && kept.len() < decades.len(), "{kept:?}");
    assert_eq!(some.iter().collect::<std::collections::BTreeSet<_>>(), kept);
    assert!(told.contains("at the drive") && told.contains("groups chosen on the host"), "{told}");
    for side in ["drive", "host"] {
        let (venues, _) = rows(&["--select", "distinct venue", "--run", side]);
        let (counted, _) = rows(&["--select", "count(distinct venue), count(distinct 1)", "--run", side]);
        assert_eq!(counted, [format!("{},1", venues.len())], "on the {side}");
    }
    let distinct = ["--select", "distinct year - year % 10 as decade", "--order-by", "decade desc", "--limit", "2"];
    let (last, told) = rows(&distinct);
    assert!(last.len() == 2 && last[0] > last[1] && told.contains("groups put in order on the host"), "{last:?}{told}");
    for (words, why) in [
        (&["--select", "sum(distinct year)"][..], "distinct values are counted, and not added up"),
        (&["--select", "year", "--having", "year > 2000"], "beside aggregates stand"),
        (&["--select", "count(*)", "--having", "year > 2000"], "having, column 1, year: a condition on groups takes"),
        (
            &["--where", "cast(year as decimal(10,2)) > 1"],
            "there is no decimal type: a number such as 12.50 is a float",
        ),
    ] {
        let told = scratch.fails(&[&asked[..], words].concat());
        assert!(told.contains(why), "{words:?}: {told}");
    }
}

#[test]
fn what_is_no_json_is_found_and_not_stored() {
    let scratch = new_scratch("json");
    scratch.asks(&["keyspace", "create", "orders"]);
    let lines = b"1\t{\"total\":2.5,\"city\":\"Lyon\"}\n2\tno json\n3\t{}\n4\t{\"city\":\"Nice\"} behind\n";
    scratch.asks_of(&["load", "--keyspace", "orders"], lines);
    let format = "key: id string; value: total json $.total float, city json $.city string";
    scratch.asks(&["keyspace", "format", "orders", format]);
    let asked = ["scan", "orders", "--select", "id", "--where", "total is null", "--format", "csv"];
    for side in ["drive", "host"] {
        let on = [&asked[..], &["--run", side]].concat();
        assert!(
            scratch.fails(&on).contains("does not fit the format, at the field total: the document is not JSON"),
            "{side}"
        );
        let (rows, told) = scratch.asks(&[&on[..], &["--on-error", "skip"]].concat());
        assert_eq!(rows, "id\n3\n", "{side}");
        assert!(told.contains("2 records do not fit and were left out"), "{told}");
    }
    let told = scratch.fails(&["keyspace", "format", "orders", "--check"]);
    assert!(told.contains("2 of 4 items do not fit") && told.contains("the document is not JSON"), "{told}");
    let put = |key: &'static str, value: &'static str| ["put", key, value, "--keyspace", "orders"];
    let told = scratch.fails(&put("5", "no json"));
    for part in ["the value does not fit the format of orders", "at total json $.total float", "is not JSON", format] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(scratch.fails(&put("5", "{\"total\":\"x\"}")).contains("the value at the path has another type"));
    assert!(scratch.fails(&put("\\xff", "{}")).contains("the key does not fit the format of orders, at id string"));
    assert!(scratch.fails(&["get", "5", "--keyspace", "orders"]).contains("no key"));
    scratch.asks(&put("5", "{\"total\": 7} "));
    assert_eq!(
        scratch.asks(&["get", "5", "--keyspace", "orders", "--select", "total", "--format", "csv"]).0,
        "total\n7\n"
    );
    // Without a format any bytes are accepted.
    scratch.asks(&["keyspace", "format", "orders", "--remove"]);
    scratch.asks(&put("\\xff", "no json"));
}

#[test]
fn a_type_of_other_databases_is_told_by_the_argument_that_has_it() {
    let scratch = new_scratch("types");
    scratch.asks(&["keyspace", "create", "orders"]);
    let told = scratch.fails(&["keyspace", "format", "orders", "value: total decimal(10,2)"]);
    assert!(told.contains("FIELDS, column 14, \"decimal(10,2)\": there is no decimal type"), "{told}");
    let told = scratch.fails(&["scan", "orders", "--fields", "value: total json $.total decimal(10,2)"]);
    assert!(told.contains("--fields, column 27, \"decimal(10,2)\": there is no decimal type"), "{told}");
}

#[test]
fn a_key_is_found_as_its_format_has_it_and_as_list_prints_it() {
    let scratch = new_scratch("keys");
    scratch.asks(&["keyspace", "create", "n", "--index", "ordered"]);
    let lines: String =
        (0..1000).map(|id| format!("\\x00\\x00\\x{:02x}\\x{:02x}\tv{id}\n", id >> 8, id & 0xff)).collect();
    scratch.asks_of(&["load", "--keyspace", "n"], format!("{lines}1234\tdigits\n\\xff\tmisfit\n").as_bytes());
    let set = ["keyspace", "format", "n", "key: id u32be; value: v string"];
    scratch.asks(&set);
    let of = |words: &[&str]| scratch.asks(&[words, &["--keyspace", "n"]].concat()).0;
    for key in ["100", "\\x00\\x00\\x00d", "\\x00\\x00\\x00\\x64"] {
        assert_eq!(of(&["get", key]), "v100", "{key}");
        assert!(!of(&["inspect", key]).contains("nowhere"), "{key}");
        assert_eq!(of(&["pipeline", "run", "fetch", "--key", key]), "v100", "{key}");
    }
    assert_eq!((of(&["get", "\\x31\\x32\\x33\\x34"]), of(&["get", "\\xff"])), ("digits".into(), "misfit".into()));
    let asked = ["--select", "v", "--format", "csv"];
    assert_eq!(of(&[&["get", "100"], &asked[..]].concat()), "v\nv100\n");
    assert_eq!(of(&[&["scan", "--from", "100", "--to", "102"], &asked[..]].concat()), "v\nv100\nv101\n");
    for bounds in [["100", "102"], ["\\x00\\x00\\x00d", "\\x00\\x00\\x00f"]] {
        assert_eq!(of(&["scan", "--from", bounds[0], "--to", bounds[1], "--count"]), "2\n", "{bounds:?}");
    }
    assert_eq!(of(&["scan", "--prefix", "\\x00\\x00\\x03", "--count"]), "232\n");
    assert_eq!((of(&["scan", "--limit", "0"]), of(&["scan", "--limit", "0", "--count"])), ("".into(), "0\n".into()));
    assert_eq!(of(&["list", "--prefix", "825373492"]), "\\x31\\x32\\x33\\x34\n");
    // Keys that `list` prints can be used.
    let listed = of(&["list"]);
    let last: Vec<&str> = listed.lines().rev().take(3).collect();
    assert_eq!((listed.lines().count(), &last[..2]), (1002, &["\\xff", "\\x31\\x32\\x33\\x34"][..]));
    scratch.asks(&["put", "5000", "new", "--keyspace", "n"]);
    assert_eq!(of(&["get", "\\x00\\x00\\x13\\x88"]), "new");
    let told = scratch.fails(&["put", "\\xff", "v", "--keyspace", "n"]);
    assert!(told.contains("the key does not fit the format of n, at id u32be: the record ends"), "{told}");
    assert_eq!(of(&["delete", "\\x00\\x00\\x13\\x88"]), "");
    for (words, why) in [
        (&["get", "abcd"][..], "is not a whole number; or write its bytes as `tapetum list` prints them"),
        (&["put", "4294967296", "v"], "is not from 0 to 4294967295"),
        (&["delete", "a\\"], "a backslash stands alone"),
        (&["scan", "--from", "x"], "--from: the key's field id"),
        (&["list", "--prefix", "x"], "is not a whole number"),
    ] {
        let told = scratch.fails(&[words, &["--keyspace", "n"]].concat());
        assert!(told.contains(why), "{words:?}: {told}");
    }
}

#[test]
fn a_key_that_is_no_utf_8_is_named_by_every_command() {
    let scratch = new_scratch("bytes");
    for (name, index) in [("h", "hashed"), ("o", "ordered")] {
        scratch.asks(&["keyspace", "create", name, "--index", index]);
        let of = |words: &[&str]| scratch.asks(&[words, &["--keyspace", name]].concat()).0;
        scratch.asks(&["put", "\\xff\\x00k", "v", "--keyspace", name]);
        scratch.asks(&["put", "other", "w", "--keyspace", name]);
        assert_eq!(of(&["get", "\\xff\\x00k"]), "v", "{name}");
        assert!(!of(&["inspect", "\\xff\\x00k"]).contains("nowhere"), "{name}");
        assert_eq!(of(&["pipeline", "run", "fetch", "--key", "\\xff\\x00k"]), "v", "{name}");
        let digest = of(&["pipeline", "run", "sha256", "--key", "\\xff\\x00k"]);
        assert!(digest.starts_with("4c94485e0c21ae6c"), "{name}: {digest}");
        assert_eq!(of(&["list", "--prefix", "\\xff"]), "\\xff\\x00k\n", "{name}");
        assert_eq!(of(&["dump", "--prefix", "\\xff", "--format", "tsv"]), "\\xff\\x00k\tv\n", "{name}");
        if name == "o" {
            assert_eq!(of(&["scan", "--prefix", "\\xff", "--count"]), "1\n");
            assert_eq!(of(&["scan", "--from", "\\xff", "--to", "\\xff\\xff", "--count"]), "1\n");
            assert_eq!(of(&["scan", "--to", "\\xff", "--count"]), "1\n");
        }
        assert_eq!(of(&["delete", "\\xff\\x00k"]), "");
        assert_eq!(of(&["list"]), "other\n", "{name}");
    }
    let raw = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff");
    let told = failed_text(&tapetum(&["get"]).arg::<&std::ffi::OsStr>(raw).output().unwrap());
    assert!(told.contains("write each such byte of a key as \\xHH"), "{told}");
}

#[test]
fn fetch_alone_prints_every_value_as_it_is() {
    let scratch = new_scratch("fetch");
    // Long and short values, compressible and incompressible.
    let random: Vec<u8> = (0..9000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 | 1).collect();
    let values = [b"v".to_vec(), vec![b'x'; 9000], random];
    for (key, value) in ["short", "long", "random"].into_iter().zip(&values) {
        let create = if key == "short" { &["--capacity", "64MiB"][..] } else { &[] };
        scratch.asks_of(&[&["put", key, "-"], create].concat(), value);
        let output = scratch.run(&["pipeline", "run", "fetch", "--key", key]);
        assert!(output.status.success() && output.stdout == *value, "{key}: {}", failed_text(&output));
    }
}

fn failed_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
