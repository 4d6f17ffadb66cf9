//! Amounts as Kubernetes writes them: `10Gi`, `500m`, `1.5e3`.

use std::str::FromStr;

/// An exact amount, to the billionth; amounts beyond what any cluster has are as big as can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    /// Kubernetes itself keeps nothing smaller than this.
    billionths: i128,
}

/// A text that is no amount.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an amount such as 10Gi, 500m or 1e3")]
pub struct NotAQuantity(String);

/// Places behind the point that are kept.
const PLACES: i32 = 9;

impl FromStr for Quantity {
    type Err = NotAQuantity;

    fn from_str(text: &str) -> Result<Self, NotAQuantity> {
        parse(text).map(|billionths| Self { billionths }).ok_or_else(|| NotAQuantity(text.to_owned()))
    }
}

impl Quantity {
    /// The amount without what is behind the point.
    #[must_use]
    pub fn whole(self) -> i128 {
        self.billionths / 10_i128.pow(PLACES.unsigned_abs())
    }
}

fn parse(text: &str) -> Option<i128> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (factor, exponent) = scale(suffix)?;
    let digits = whole.bytes().chain(fraction.bytes());
    let digits = digits.fold(0_i128, |sum, digit| sum.saturating_mul(10).saturating_add(i128::from(digit - b'0')));
    let places = i32::try_from(fraction.len()).ok()?;
    let amount = shift(digits.saturating_mul(factor), exponent.saturating_add(PLACES - places));
    Some(if text.starts_with('-') { -amount } else { amount })
}

/// What a suffix multiplies by: a factor, and a power of ten.
fn scale(suffix: &str) -> Option<(i128, i32)> {
    let binary = |power: u32| Some((1_i128 << (10 * power), 0));
    let decimal = |exponent| Some((1, exponent));
    match suffix {
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        _ => decimal(suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
    }
}

/// Moves the point; what falls off behind it is rounded up, as Kubernetes does.
fn shift(amount: i128, exponent: i32) -> i128 {
    let power = 10_i128.checked_pow(exponent.unsigned_abs());
    match (exponent >= 0, power) {
        (true, Some(power)) => amount.saturating_mul(power),
        (true, None) => amount.saturating_mul(i128::MAX),
        (false, Some(power)) => amount / power + i128::from(amount % power != 0),
        (false, None) => i128::from(amount != 0),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn quantity(text: &str) -> Quantity {
        text.parse().unwrap()
    }

    #[test]
    fn equal_amounts_are_equal_however_they_are_written() {
        for (one, other) in [
            ("1", "1000m"),
            ("1Ki", "1024"),
            ("1.5Gi", "1536Mi"),
            ("1k", "1e3"),
            ("0.5", "500m"),
            (".5", "500000u"),
            ("1E", "1e18"),
            ("2E2", "200"),
            ("-1", "-1000m"),
            ("+3", "3"),
            ("1.", "1"),
            // Smaller than can be told: rounded up.
            ("0.1n", "1n"),
            ("1e-40", "1n"),
            ("99999999999999999999999999999999999999Ei", "1e99"),
        ] {
            assert_eq!(quantity(one), quantity(other), "{one} and {other}");
        }
    }

    #[test]
    fn amounts_are_compared_by_size_not_by_letters() {
        let ascending = ["-5", "0", "1n", "999m", "1", "9", "10", "1k", "1Ki", "2000M", "2Gi", "1Ti", "8Ei"];
        assert!(ascending.map(quantity).is_sorted_by(|one, other| one < other));
    }

    #[test]
    fn an_amount_of_bytes_can_be_written_again() {
        for (text, whole) in [("1Gi", 1 << 30), ("1500m", 1), ("999m", 0), ("2E2", 200)] {
            assert_eq!(quantity(text).whole(), whole, "{text}");
        }
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        for text in ["", "-", ".", "Gi", "1.2.3", "1 Gi", "1gi", "1K", "e3", "1e", "1e3Ki", "0x10", "1e99999999999"] {
            assert!(text.parse::<Quantity>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[+-]?[0-9.]{0,45}[a-zA-Z0-9+-]{0,4}") {
            let _ = text.parse::<Quantity>();
        }

        #[test]
        fn whole_numbers_keep_their_order(one: i64, other: i64) {
            prop_assert_eq!(quantity(&one.to_string()).cmp(&quantity(&other.to_string())), one.cmp(&other));
        }
    }
}
