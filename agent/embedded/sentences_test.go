package embedded

import (
	"slices"
	"testing"
)

func TestTextsAreCutIntoSentences(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"We open at 9:00 a.m. on weekdays. Come by!":                            {"We open at 9:00 a.m. on weekdays.", "Come by!"},
		"We open at 9 a.m. Monday to Friday.":                                   {"We open at 9 a.m. Monday to Friday."},
		"A scarf is €4.90. Hats cost £12.50.":                                   {"A scarf is €4.90.", "Hats cost £12.50."},
		"Write to a.b@shop.example or see https://shop.example/a?b. We answer.": {"Write to a.b@shop.example or see https://shop.example/a?b.", "We answer."},
		"We sell tea, e.g. Sencha, and cups, i.e. mugs. Dr. Hu owns us.":        {"We sell tea, e.g. Sencha, and cups, i.e. mugs.", "Dr. Hu owns us."},
		"It was founded by J. Smith. He is 80.":                                 {"It was founded by J. Smith.", "He is 80."},
		"- one\n* two\n3. three\n\n• four":                                      {"one", "two", "three", "four"},
		"-5 °C is too cold.":                                                    {"-5 °C is too cold."},
		`He said "Stop!" and left. "Why?" she asked. (Nobody knows.) Ok`:        {`He said "Stop!" and left.`, `"Why?" she asked.`, "(Nobody knows.)", "Ok"},
		"Wait... what? Yes!!! No…":                                              {"Wait... what?", "Yes!!!", "No…"},
		"営業時間は九時です。日曜は休みです。":                                                    {"営業時間は九時です。", "日曜は休みです。"},
		"first line\nsecond line":                                               {"first line", "second line"},
		"  \n\n\t":                                                              nil,
		"...":                                                                   {"..."},
	} {
		var got []string
		for _, s := range sentences(text) {
			got = append(got, s.text)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q is cut into %q, want %q", text, got, want)
		}
	}
}

func TestSentencesHaveRoles(t *testing.T) {
	t.Parallel()
	got := sentences("# Hours\nOpening hours:\n- Monday 9 to 5\n\n**Do you ship?** Yes.")
	want := []sentence{
		{"Hours", heading, false},
		{"Opening hours:", opener, false},
		{"Monday 9 to 5", statement, false},
		{"**Do you ship?**", question, true},
		{"Yes.", statement, false},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
