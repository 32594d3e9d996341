// Package embedded is the model inside Parley, embedded/extractive-1: honest, deterministic, without a key and without a
// network. It makes nothing up, because it writes nothing: it finds the sentences of the agent's own knowledge and prompt
// that answer a message, and quotes them word for word. Where none does, it says that it does not know.
//
// An agent's texts are cut into sentences (sentences.go), the sentences gathered in passages, and the passages indexed
// (index.go), once for each version of the agent; the indexes are kept within a number of bytes (cache.go). A message is
// reduced to the stems of its telling words (words.go), those of customer service taken for one that say the same
// (synonyms.go), slips of the pen mended (typo.go), its passage found by BM25 (Robertson and Zaragoza, 2009), a word in a title
// counting twice, and the best sentences of that passage quoted in their order (search.go). One that names no more than the
// passage's title ("Returns?") has the first sentences of it. A short message may go on with an earlier one (readings.go).
// Greetings, thanks and the question who is there are answered by Templates (templates.go).
//
// What it declines is decided by coverage: how much of the message's weight, rare words counting most, the passage knows at
// all. A word that the agent's texts nowhere use weighs as much as the rarest: that is what keeps the model from answering a
// question about a museum with the shop's opening hours. Only the words that people wrap a question in (chatter.go) are let off.
//
// Its limit: of what a business sells it knows no synonyms but those that the agent's own texts use. Of the questions that it
// was tuned with it answers 19 in 20 rightly; of those in two sets that it was never changed for, 24 of 30
// (testdata/heldout2.txt) and 11 of 15 (heldout.txt), and it declined 24 of their 25 that are beside the subject. What helps
// is a title in customers' words, such as "Gift cards and vouchers". A message with one known and one unknown noun ("Do you
// sell bicycles?") is where declining what it should and answering what it could cannot both be had.
//
// Why an index of our own and not SQLite's FTS5: coverage needs the weight of each word, which FTS5 keeps to itself, and a
// turn costs some 12 µs here. Stop words and stemming are English; agents in other languages work, less well.
//
// A tool is called when the message has one of its triggers in it, once a turn, and only if its arguments can be filled in
// without making anything up: a sole required text gets the whole message (calls.go). What tools bring is quoted like knowledge.
//
// Every sentence of an answer stands in the agent's prompt, in its knowledge, in a tool's result, or in Templates. The prompt is
// read as it was written, and not as a turn fills it in: a sentence with a variable in it is for the model, and never quoted.
package embedded
