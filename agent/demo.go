package agent

import (
	"embed"
	"path"
	"strings"

	"parley/store"
)

//go:embed demo
var demoFiles embed.FS

// Demo is the agent that the first start makes: it works for Fern & Thread, a small fictional knitwear shop, and knows
// enough about it to give a visitor sensible answers.
func Demo() (name, prompt string, knowledge []store.Knowledge) {
	const folder = "demo/knowledge"
	files, err := demoFiles.ReadDir(folder)
	if err != nil {
		panic(err) // they are part of the binary
	}
	for _, f := range files {
		title, text, _ := strings.Cut(demoFile(path.Join(folder, f.Name())), "\n")
		knowledge = append(knowledge, store.Knowledge{Title: strings.TrimPrefix(title, "# "), Text: strings.TrimSpace(text)})
	}
	return "Fern & Thread", demoFile("demo/prompt.md"), knowledge
}

func demoFile(name string) string {
	raw, err := demoFiles.ReadFile(name)
	if err != nil {
		panic(err) // it is part of the binary
	}
	return strings.TrimSpace(string(raw))
}
