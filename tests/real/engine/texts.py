"""Texts for the real model and its tokenizer."""

PROSE = """\
The harbour wakes before the town does. At four the first boats come in under their lamps, low in the water, and the men on
the quay catch the ropes without a word because everyone knows which rope is whose. By five the ice has been broken into
tubs, the crates are stacked three high, and the buyers walk along the rows with their hands in their pockets, pretending
that they have seen nothing they like. It is an old game. Nobody is fooled by it, and nobody would give it up.

Marta kept the books for the cooperative, and she had noticed that the numbers for March could not be right. Forty-one boats had
landed 12,480 kilograms of cod, the ledger said, but the scale house had paid for 11,960. A difference of 520 kilograms is not a
slip of the pen. She wrote the two figures on the back of an envelope, one above the other, and looked at them for a while. Then
she put on her coat and went down to ask the only person who was certain to know, which was the boy who swept the floor.

"How does a tide know when to turn?" he asked her, before she could say anything. He was leaning on the broom. Outside, a gull
walked along the wall as if it had bought the place. "It doesn't," said Marta. "It is pulled." He thought about that. Light from
the window moved slowly over the wet stones between them, and somewhere behind the ice house an engine coughed, stopped, coughed
again and began to run.
"""

CODE = '''def merge(left: list[int], right: list[int]) -> list[int]:
    """Merge two sorted lists; O(len(left) + len(right))."""
    merged, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            merged.append(left[i]); i += 1
        else:
            merged.append(right[j]); j += 1
    return merged + left[i:] + right[j:]  # 0x7fff_ffff != -1e-9


#include <vector>
template <typename T> struct Ring { std::vector<T> cells; size_t head = 0;
\tT& operator[](size_t i) { return cells[(head + i) % cells.size()]; }
};  /* "escaped \\"quotes\\"" and \ttabs */
SELECT name, COUNT(*) FROM orders WHERE total >= 100.00 GROUP BY 1 HAVING COUNT(*) > 3;
'''

DIGITS = "0 1 12 123 1234 12345678901234567890 3.14159 -42 1,000,000 0x1F 1e-9 2024-02-29T23:59:60Z ½ ² ³ ٣٤٥ १२३ Ⅷ"

EMOJI = "🙂👍🏽 👩‍👩‍👧‍👦 🇩🇪🇰🇷 ☕️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ❤️‍🔥 ✅→≠∑∫ √2 ≈ 1.41"

KOREAN = "안녕하세요. 오늘은 서울에서 부산까지 기차를 타고 갑니다! 커피 두 잔과 김밥 한 줄을 샀어요, 3,500원이었습니다."

THAI = "สวัสดีครับ วันนี้อากาศดีมาก เราจะไปตลาดน้ำกันไหม ราคา ๒๐ บาท หรือ 20 บาท?"

MIXED = "Ünïcödé naïve Straße ΑΒΓ привет שלום مرحبا नमस्ते 東京は雨。 \u200bzero\u200dwidth\u00a0nbsp\ufeff e\u0301 "

SPACES = " a  b   c    d\t\te \n f\n\n\n g \r\n\r\n\t  \n  x   \x1b[0m'S 'LL don't DON'T I'Ve \u3000\u2003end \n"

SPECIALS = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<|endoftext|>x <|im_end|>y <|not_special|> <|im_end"
