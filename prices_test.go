package main

import (
	"os"
	"path/filepath"
	"testing"

	"parley/store"
)

func TestPrices(t *testing.T) {
	t.Parallel()
	const doc = `{"openai/gpt-4.1-mini": {"input": 0.40, "output": 1.60}, "openai/gpt-4.1-mini-2026-01-02": {"input": 0, "output": 0.000001}, "anthropic/claude": {"input": 3, "output": 10000}}`
	file := filepath.Join(t.TempDir(), "prices.json")
	if err := os.WriteFile(file, []byte(doc+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, setting := range []string{doc, file} {
		prices, err := parsePrices(setting)
		if err != nil {
			t.Fatal(err)
		}
		for model, want := range map[string]store.Price{
			"openai/gpt-4.1-mini":            {Input: 400_000, Output: 1_600_000},
			"openai/gpt-4.1-mini-2025-04-14": {Input: 400_000, Output: 1_600_000},
			"openai/gpt-4.1-mini-2026-01-02": {Input: 0, Output: 1},
			"anthropic/claude-20250929":      {Input: 3_000_000, Output: 10_000_000_000},
		} {
			if got, ok := prices.of(model); !ok || got != want {
				t.Errorf("%s: %+v, %v", model, got, ok)
			}
		}
		for _, model := range []string{"openai/gpt-4.1", "gpt-4.1-mini", "openai/gpt-4.1-mini-2", ""} {
			if got, ok := prices.of(model); ok {
				t.Errorf("%q costs %+v", model, got)
			}
		}
	}
	for _, wrong := range []string{
		`{`, `{}{}`, `{"m": 1}`, `{"m": null}`, `{"m": {"input": 1}}`, `{"m": {"input": "x", "output": 1}}`, `{"m": {"input": 1, "output": 1, "per": 2}}`,
		`{"m": {"input": -1, "output": 1}}`, `{"m": {"input": 1e3, "output": 1}}`, `{"m": {"input": 0.0000001, "output": 1}}`,
		`{"m": {"input": 1, "output": 10000.000001}}`, filepath.Join(t.TempDir(), "none"),
	} {
		if got, err := parsePrices(wrong); err == nil {
			t.Errorf("%s was read as %v", wrong, got)
		}
	}
	if none, err := parsePrices(" "); err != nil || len(none) != 0 {
		t.Errorf("no setting: %v, %v", none, err)
	}
}
